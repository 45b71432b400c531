package helm

import (
	"bytes"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

func TestHelmFindsNothingToCorrect(t *testing.T) {
	for _, each := range cases {
		linter := lint.RunAll(chartFolder, readValues(t, each.file), namespace)
		for _, message := range linter.Messages {
			if !strings.Contains(message.Error(), "icon is recommended") {
				t.Errorf("%s: %v", each.name, message)
			}
		}
	}
	// The same call finds a fault.
	if linter := lint.RunAll(chartFolder, map[string]any{"rest": map[string]any{"tls": "off"}}, namespace); linter.HighestSeverity < 2 {
		t.Errorf("a wrong value is no fault: %v", linter.Messages)
	}
}

func TestObjectsAreValidAndFitTogether(t *testing.T) {
	loaded := loadChart(t)
	for _, each := range cases {
		for _, name := range []string{release, "a-release-whose-name-is-as-long-as-helm-allows-it-0123"} {
			objects, err := renderObjects(loaded, readValues(t, each.file), name)
			if err != nil {
				t.Errorf("%s: %v", each.name, err)
				continue
			}
			for _, finding := range checkObjects(objects, each.secrets) {
				t.Errorf("%s, %s: %s", each.name, name, finding)
			}
		}
	}
}

// A change of a template that must be found.
type mutation struct {
	file, old, new string
	finding        string
}

var mutations = []mutation{
	{"deployments.yaml", "replicas: {{", "replica: {{", `unknown field "spec.replica"`},
	{"deployments.yaml", "replicas: {{", "Replicas: {{", `unknown field "spec.Replicas"`},
	{"deployments.yaml", "      maxSurge: 1\n", "      maxSurge: 1\n      maxSurge: 2\n", `"maxSurge" already set`},
	{"deployments.yaml", "apiVersion: apps/v1", "apiVersion: apps/v1beta1", `unknown kind "Deployment"`},
	{"deployments.yaml", "containerPort: 8080", "containerPort: \"8080\"", "cannot unmarshal string"},
	{"deployments.yaml", "containerPort: 8080", "containerPort: 8081", `rest.listen is "[::]:8080"`},
	{"deployments.yaml", "path: /livez", "path: /health", "the path of a probe is /health"},
	{"deployments.yaml", "port: admin", "port: health", "a probe uses the port health"},
	{"deployments.yaml", "terminationGracePeriodSeconds: {{ $.Values.terminationGracePeriodSeconds }}", "terminationGracePeriodSeconds: 20", "killed before"},
	{"deployments.yaml", "- name: cache\n", "- name: caches\n", "the volume caches does not exist"},
	{"deployments.yaml", "{{- range $topology := list \"kubernetes.io/hostname\" \"topology.kubernetes.io/zone\" }}", "{{- range $topology := list }}", "pods are not spread"},
	{"deployments.yaml", "      {{- include \"evenkeel.selectorLabels\" $ | nindent 6 }}\n      app.kubernetes.io/component: {{ $command }}\n  strategy", "      app.kubernetes.io/version: other\n  strategy", "selector does not select"},
	{"deployments.yaml", "      {{- include \"evenkeel.selectorLabels\" $ | nindent 6 }}\n      app.kubernetes.io/component: {{ $command }}\n  strategy", "      {{- include \"evenkeel.selectorLabels\" $ | nindent 6 }}\n  strategy", "selector does not select"},
	{"deployments.yaml", "            {{- toYaml $.Values.containerSecurityContext | nindent 12 }}", "            runAsNonRoot: true", "capabilities are not dropped"},
	{"deployments.yaml", "            {{- toYaml $service.resources | nindent 12 }}", "            {}", "the memory has no limit"},
	{"_pod.tpl", "enableServiceLinks: false", "enableServiceLinks: true", "service links"},
	{"_pod.tpl", "automountServiceAccountToken: false", "automountServiceAccountToken: true", "token of the service account"},
	{"_pod.tpl", "{{- toYaml .Values.podSecurityContext | nindent 2 }}", "{}", "may run as root"},
	{"_pod.tpl", "- key: ca-key.pem\n", "- key: ca.key\n", "has no key ca.key"},
	{"_pod.tpl", "secretName: {{ .Values.keys.secret }}", "secretName: keys", `the Secret "keys" does not exist`},
	{"_pod.tpl", "secretName: {{ .Values.keys.secret }}\n    defaultMode: 0440", "secretName: {{ .Values.keys.secret }}\n    defaultMode: 0444", "all users can read the Secret in ca"},
	{"_pod.tpl", "  mountPath: /etc/evenkeel/ca\n  readOnly: true", "  mountPath: /etc/evenkeel/ca", "is not mounted read-only"},
	{"_pod.tpl", "  mountPath: /etc/evenkeel/ca\n", "  mountPath: /etc/evenkeel/keys\n", "two volumes are mounted"},
	{"_pod.tpl", "- name: tmp\n  mountPath: /tmp\n", "", "the volume tmp is not mounted"},
	{"_pod.tpl", "name: {{ .Values.database.urlSecret.name }}", "name: database", "the Secret fleet-database is not used"},
	{"migration.yaml", "helm.sh/hook-weight: \"-10\"", "helm.sh/hook-weight: \"10\"", `the ConfigMap "fleet-migrate" does not exist`},
	{"migration.yaml", "restartPolicy: Never", "restartPolicy: Never\n      serviceAccountName: {{ include \"evenkeel.serviceAccount\" . }}", "the ServiceAccount \"fleet\" does not exist"},
	{"serviceaccount.yaml", "name: {{ include \"evenkeel.serviceAccount\" . }}", "name: other", "the ServiceAccount \"fleet\" does not exist"},
	{"services.yaml", "targetPort: {{ $name }}", "targetPort: http", "has no port http"},
	{"services.yaml", "    app.kubernetes.io/component: {{ get $commands $key }}\n  ports", "    app.kubernetes.io/component: {{ $name }}\n  ports", "it selects no pods"},
	{"services.yaml", "    evenkeel/metrics: \"true\"", "    app.kubernetes.io/component: inventory", "it monitors 1 of the services"},
	{"services.yaml", "  publishNotReadyAddresses: true\n", "", "pods that are not ready are not monitored"},
	{"services.yaml", "  name: {{ include \"evenkeel.fullname\" . }}-metrics", "  name: {{ include \"evenkeel.fullname\" . }}_metrics", "name: a lowercase RFC 1123 label"},
	{"poddisruptionbudgets.yaml", "      app.kubernetes.io/component: {{ $command }}\n{{", "{{", "it selects 3 kinds of pods"},
	{"poddisruptionbudgets.yaml", "{{ include \"evenkeel.fullname\" $ }}-{{ $command }}", "{{ include \"evenkeel.fullname\" $ }}", "the name exists twice"},
	{"networkpolicies.yaml", "{{- $rules := dict \"inventory\" (dict \"port\" \"rest\"", "{{- $rules := dict \"inventory\" (dict \"port\" \"web\"", "has no port web"},
	{"networkpolicies.yaml", "\"port\" \"admin\" \"from\" $policy.adminFrom", "\"port\" \"admin\"", "everybody reaches the port admin"},
	{"networkpolicies.yaml", "      {{- include \"evenkeel.selectorLabels\" . | nindent 6 }}\n", "      app.kubernetes.io/component: inventory\n", "Job fleet-migrate: no policy limits who connects"},
	{"networkpolicies.yaml", "policyTypes: [Ingress]", "policyType: [Ingress]", `unknown field "spec.policyType"`},
	{"networkpolicies.yaml", "- ports:\n    - port: {{ .port }}\n      protocol: TCP\n  {{- with .from }}\n  from:", "- {{- with .from }}\n  from:", "a rule opens all ports"},
	{"monitoring.yaml", "replacement: evenkeel", "replacement: fleet", "the job is not evenkeel"},
	{"monitoring.yaml", "port: admin", "port: metrics", "has no port metrics"},
	{"monitoring.yaml", "path: /metrics", "paths: /metrics", "unknown field"},
	{"monitoring.yaml", "component: metrics", "component: inventory", "Service fleet-rest has no port admin"},
	{"monitoring.yaml", "fromYaml | toYaml", "fromYaml | toJson | replace \"expr\" \"query\"", "unknown field"},
	{"_config.tpl", "{{ $name }} = {{ toRawJson $value }}", "{{ $name }}: {{ toRawJson $value }}", "evenkeeld.toml"},
}

func TestWrongTemplatesAreFound(t *testing.T) {
	allOn := cases[len(cases)-1]
	for _, each := range mutations {
		loaded, changed := loadChart(t), false
		for _, file := range loaded.Templates {
			if strings.HasSuffix(file.Name, "/"+each.file) {
				before := file.Data
				file.Data = bytes.Replace(before, []byte(each.old), []byte(each.new), 1)
				changed = !bytes.Equal(before, file.Data)
			}
		}
		if !changed {
			t.Errorf("%s does not contain %q", each.file, each.old)
			continue
		}
		objects, err := renderObjects(loaded, readValues(t, allOn.file), release)
		var found []string
		if err != nil {
			found = []string{err.Error()}
		} else {
			found = checkObjects(objects, allOn.secrets)
		}
		if !slices.ContainsFunc(found, func(finding string) bool { return strings.Contains(finding, each.finding) }) {
			t.Errorf("%s with %q: expected %q, found %q", each.file, each.new, each.finding, found)
		}
	}
}

func TestBadValuesAreRefusedWithTheirKey(t *testing.T) {
	loaded := loadChart(t)
	for _, each := range []struct{ values, key string }{
		{"imagee: {}", "imagee"},
		{"image: {repository: ''}", "/image/repository"},
		{"image: {digest: latest}", "/image/digest"},
		{"image: {pullPolicy: Sometimes}", "/image/pullPolicy"},
		{"imagePullSecrets: [registry]", "/imagePullSecrets/0"},
		{"fullnameOverride: Fleet", "/fullnameOverride"},
		{"config: {rest: {listen: '0.0.0.0:80'}}", "/config/rest/listen"},
		{"config: {rest: {tls: false}}", "/config/rest/tls"},
		{"config: {southbound: {server_names: [a]}}", "/config/southbound/server_names"},
		{"config: {admin: {listen: '0.0.0.0:80'}}", "/config/admin/listen"},
		{"config: {auth: {disabled: true}}", "/config/auth/disabled"},
		{"config: {database: {url: 'postgres://db/x'}}", "/config/database/url"},
		{"config: {files: {dir: /x}}", "/config/files/dir"},
		{"config: {data_dir: /x}", "/config/data_dir"},
		{"config: {inventory: {}}", "inventory"},
		{"database: {url: 'postgres://evenkeel:secret@db.example/evenkeel'}", "/database/url"},
		{"database: {url: 'postgres://evenkeel@db.example/evenkeel?sslmode=require&password=secret'}", "/database/url"},
		{"database: {url: 'mysql://db.example/evenkeel'}", "/database/url"},
		{"database: {urlSecret: {name: a, key: ''}}", "/database/urlSecret/key"},
		{"database: {password: secret}", "password"},
		{"keys: {secret: ''}", "/keys/secret"},
		{"keys: {additionalFiles: [{key: old, path: ../signing.pem}]}", "/keys/additionalFiles/0/path"},
		{"listenAddress: localhost", "/listenAddress"},
		{"rest: {tls: 'off'}", "/rest/tls"},
		{"rest: {tls: secret}", "rest.tlsSecret"},
		{"rest: {serverNames: ['https://updates.example']}", "/rest/serverNames/0"},
		{"rest: {service: {port: 0}}", "/rest/service/port"},
		{"rest: {service: {type: ExternalName}}", "/rest/service/type"},
		{"southbound: {tls: none}", "/southbound/tls"},
		{"southbound: {tls: secret}", "southbound.tlsSecret"},
		{"southbound: {service: {externalTrafficPolicy: local}}", "/southbound/service/externalTrafficPolicy"},
		{"files: {enabled: 'yes'}", "/files/enabled"},
		{"files: {cache: {type: disk}}", "/files/cache/type"},
		{"files: {cache: {size: 60GB}}", "/files/cache/size"},
		{"admin: {tls: 'yes'}", "/admin/tls"},
		{"services: {inventory: {replicas: -1}}", "/services/inventory/replicas"},
		{"services: {inventory: {replica: 1}}", "replica"},
		{"services: {os-resource-manager: {}}", "os-resource-manager"},
		{"services: {osResourceManager: {databaseConnections: 1}}", "/services/osResourceManager/databaseConnections"},
		{"services: {maintenanceManager: {resources: {limits: null}}}", "/services/maintenanceManager/resources"},
		{"migration: {timeout: forever}", "/migration/timeout"},
		{"podDisruptionBudget: {maxUnavailable: 0}", "/podDisruptionBudget/maxUnavailable"},
		{"podDisruptionBudget: {maxUnavailable: 0%}", "/podDisruptionBudget/maxUnavailable"},
		{"networkPolicy: {restFrom: [192.0.2.0/24]}", "/networkPolicy/restFrom/0"},
		{"networkPolicy: {egress: true}", "/networkPolicy/egress"},
		{"monitoring: {serviceMonitor: {interval: 30}}", "/monitoring/serviceMonitor/interval"},
		{"monitoring: {prometheusRule: {labels: {a: 1}}}", "/monitoring/prometheusRule/labels/a"},
		{"topologySpread: {whenUnsatisfiable: Never}", "/topologySpread/whenUnsatisfiable"},
		{"serviceAccount: {name: Fleet}", "/serviceAccount/name"},
		{"preStopSleepSeconds: 0", "/preStopSleepSeconds"},
		{"terminationGracePeriodSeconds: 30s", "/terminationGracePeriodSeconds"},
		{"nodeSelector: {disk: 1}", "/nodeSelector/disk"},
		{"extraVolumes: {}", "/extraVolumes"},
	} {
		values := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(each.values), &values); err != nil {
			t.Fatal(err)
		}
		_, err := renderFiles(loaded, values, release)
		if err == nil || !strings.Contains(err.Error(), each.key) {
			t.Errorf("%s: expected an error with %s, got %v", each.values, each.key, err)
		}
	}
}

// The archive of a chart contains no links, so it must contain the rules themselves.
func TestTheArchiveContainsTheAlerts(t *testing.T) {
	path, err := chartutil.Save(loadChart(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	packed, err := loader.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := renderObjects(packed, readValues(t, "values/all-on.yaml"), release)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(root + "/deploy/monitoring/evenkeel.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var expected monitoring.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(text, &expected); err != nil {
		t.Fatal(err)
	}
	rules := valuesOf[monitoring.PrometheusRule](objects)
	if len(rules) != 1 || len(expected.Groups) == 0 {
		t.Fatalf("%d objects with rules, %d groups", len(rules), len(expected.Groups))
	}
	for rule := range rules {
		if !reflect.DeepEqual(rule.Spec, expected) {
			t.Errorf("the rules differ from deploy/monitoring/evenkeel.rules.yml")
		}
	}
}

func TestAChangeOfTheConfigurationReplacesThePods(t *testing.T) {
	loaded, sums := loadChart(t), map[string]bool{}
	for _, timeout := range []string{"20s", "21s"} {
		values := map[string]any{"config": map[string]any{"shutdown_timeout": timeout}}
		objects, err := renderObjects(loaded, values, release)
		if err != nil {
			t.Fatal(err)
		}
		for deployment := range valuesOf[apps.Deployment](objects) {
			sums[deployment.Name+deployment.Spec.Template.Annotations["checksum/config"]] = true
		}
	}
	if len(sums) != 6 {
		t.Errorf("two configurations of three services have %d checksums", len(sums))
	}
}

func TestTheVersionIsThatOfTheProgram(t *testing.T) {
	text, err := os.ReadFile(root + "/Cargo.toml")
	if err != nil {
		t.Fatal(err)
	}
	if version := loadChart(t).Metadata.AppVersion; !strings.Contains(string(text), "\nversion = \""+version+"\"\n") {
		t.Errorf("appVersion is %s, which is not the version in Cargo.toml", version)
	}
}

// OpenShift refuses pods that choose their own user.
func TestTheUserOfPodsCanBeLeftToTheCluster(t *testing.T) {
	values := map[string]any{"podSecurityContext": map[string]any{"runAsUser": nil, "runAsGroup": nil, "fsGroup": nil}}
	objects, err := renderObjects(loadChart(t), values, release)
	if err != nil {
		t.Fatal(err)
	}
	pods := podsOf(objects)
	for _, pod := range pods {
		context := pod.template.Spec.SecurityContext
		if context.RunAsUser != nil || context.RunAsGroup != nil || context.FSGroup != nil || !isTrue(context.RunAsNonRoot) {
			t.Errorf("%s: %v", pod.owner, context)
		}
	}
	if len(pods) != 4 {
		t.Errorf("%d pods", len(pods))
	}
}

func TestTheReadmeDescribesEachValueAndNoOther(t *testing.T) {
	text, err := os.ReadFile(chartFolder + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	described, isTable := map[string]bool{}, false
	for _, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(line, " | ")
		isTable = strings.HasPrefix(line, "| Value |") || isTable && strings.HasPrefix(line, "|")
		if name, isName := strings.CutPrefix(cells[0], "| `"); isTable && isName {
			described[strings.TrimSuffix(name, "`")] = false
		}
	}
	for _, path := range leaves("", loadChart(t).Values) {
		if _, exists := described[path]; !exists {
			t.Errorf("README.md does not describe %s", path)
		}
		described[path] = true
	}
	for name, exists := range described {
		if !exists && !slices.Contains(withoutDefault, name) {
			t.Errorf("README.md describes %s, which does not exist", name)
		}
	}
}

// Values that the schema has, and the file of the default values has not.
var withoutDefault = []string{
	"*.service.nodePort", "*.service.externalTrafficPolicy", "*.service.loadBalancerClass", "*.service.loadBalancerSourceRanges",
}

// Paths of the values. The services and the listeners have the same keys, which README.md describes once.
func leaves(path string, value any) []string {
	table, isTable := value.(map[string]any)
	parent, last := "", path
	if at := strings.LastIndex(path, "."); at >= 0 {
		parent, last = path[:at], path[at+1:]
	}
	switch {
	case path == "" || isTable && len(table) > 0 && last != "resources" && !strings.HasSuffix(path, "SecurityContext"):
		var found []string
		for key, inner := range table {
			below := strings.TrimPrefix(path+"."+key, ".")
			found = append(found, leaves(below, inner)...)
		}
		return found
	case strings.HasPrefix(parent, "services."):
		return []string{"services.*." + last}
	case strings.HasSuffix(parent, ".service"):
		return []string{"*.service." + last}
	}
	return []string{path}
}

func TestTheNotesNameTheNextCommand(t *testing.T) {
	loaded := loadChart(t)
	for file, expected := range map[string][]string{
		"": {
			"kubectl --namespace fleet rollout status deployment",
			"umask 077\n  kubectl --namespace fleet exec deployment/evenkeel-inventory -- evenkeeld token operator --role admin",
			"evenkeel login --server https://localhost:8080 --ca evenkeel-ca.pem",
			"set southbound.serverNames",
		},
		"values/all-on.yaml":  {"evenkeel login --server https://updates.example:443 ", "exec deployment/fleet-inventory"},
		"values/all-off.yaml": {"evenkeel login --server http://localhost:8080 "},
	} {
		files, err := renderFiles(loaded, readValues(t, file), release)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range expected {
			if !strings.Contains(files["NOTES.txt"], part) {
				t.Errorf("%s: the notes lack %q:\n%s", file, part, files["NOTES.txt"])
			}
		}
	}
}
