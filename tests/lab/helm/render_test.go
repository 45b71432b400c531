// Package helm tests the Helm chart in deploy/helm/evenkeel: it renders the chart with several files of values, decodes each
// object strictly into the types of Kubernetes, and checks the references between the objects.
package helm

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	root        = "../../.."
	chartFolder = root + "/deploy/helm/evenkeel"
	release     = "evenkeel"
	namespace   = "fleet"
)

// Helm logs each link in a chart. The programs are in a folder that each user can enter.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log.SetOutput(io.Discard)
	folder, err := os.MkdirTemp("", "evenkeel-helm-")
	if err == nil {
		err = os.Chmod(folder, 0o755)
	}
	if err != nil {
		panic(err)
	}
	programFolder = folder
	status := m.Run()
	os.RemoveAll(folder)
	os.Exit(status)
}

// A file of values, and the Secrets that a user must create for it: their keys by their names.
type valuesCase struct {
	name    string
	file    string
	secrets map[string][]string
}

var sharedKeys = []string{"signing.pem", "operators-signing.pem", "ca.pem", "ca-key.pem"}

var cases = []valuesCase{
	{
		name:    "default",
		secrets: map[string][]string{"evenkeel-database": {"url"}, "evenkeel-keys": sharedKeys},
	},
	{
		name: "external TLS",
		file: chartFolder + "/examples/external-tls.yaml",
		secrets: map[string][]string{
			"evenkeel-database":       {"url"},
			"evenkeel-keys":           sharedKeys,
			"evenkeel-rest-tls":       {"tls.crt", "tls.key"},
			"evenkeel-southbound-tls": {"tls.crt", "tls.key", "ca.crt"},
		},
	},
	{
		name: "CloudNativePG",
		file: chartFolder + "/examples/cloudnative-pg/values.yaml",
		secrets: map[string][]string{
			"evenkeel-database-app": {"password"},
			"evenkeel-database-ca":  {"ca.crt"},
			"evenkeel-keys":         sharedKeys,
		},
	},
	{
		name:    "all off",
		file:    "values/all-off.yaml",
		secrets: map[string][]string{"evenkeel-database": {"url"}, "evenkeel-keys": sharedKeys},
	},
	{
		name:    "files",
		file:    "values/files.yaml",
		secrets: map[string][]string{"evenkeel-database": {"url"}, "evenkeel-keys": sharedKeys},
	},
	{
		name: "all on",
		file: "values/all-on.yaml",
		secrets: map[string][]string{
			"registry-example":     {".dockerconfigjson"},
			"fleet-database":       {"uri"},
			"fleet-database-ca":    {"ca.crt"},
			"fleet-owner":          {"uri"},
			"fleet-keys":           append([]string{"signing-2025.pem", "operators-signing-2025.pem"}, sharedKeys...),
			"fleet-rest-tls":       {"tls.crt", "tls.key"},
			"fleet-southbound-tls": {"tls.crt", "tls.key"},
			"fleet-users":          {"users.toml"},
			"fleet-registry":       {"password"},
		},
	},
}

// A rendered object. `value` is a pointer to its type of Kubernetes.
type object struct {
	file  string
	text  string
	meta  meta.ObjectMeta
	kind  string
	value any
}

func (o object) String() string { return o.kind + " " + o.meta.Name }

func (o object) isHook() bool { return o.meta.Annotations["helm.sh/hook"] != "" }

// Decoders of all kinds of the chart. An object of another kind is an error.
var decoders = map[string]func(text []byte) (any, meta.ObjectMeta, error){
	"apps/v1 Deployment":                      decode(func(v *apps.Deployment) meta.ObjectMeta { return v.ObjectMeta }),
	"batch/v1 Job":                            decode(func(v *batch.Job) meta.ObjectMeta { return v.ObjectMeta }),
	"v1 ConfigMap":                            decode(func(v *core.ConfigMap) meta.ObjectMeta { return v.ObjectMeta }),
	"v1 Service":                              decode(func(v *core.Service) meta.ObjectMeta { return v.ObjectMeta }),
	"v1 ServiceAccount":                       decode(func(v *core.ServiceAccount) meta.ObjectMeta { return v.ObjectMeta }),
	"policy/v1 PodDisruptionBudget":           decode(func(v *policy.PodDisruptionBudget) meta.ObjectMeta { return v.ObjectMeta }),
	"networking.k8s.io/v1 NetworkPolicy":      decode(func(v *networking.NetworkPolicy) meta.ObjectMeta { return v.ObjectMeta }),
	"monitoring.coreos.com/v1 ServiceMonitor": decode(func(v *monitoring.ServiceMonitor) meta.ObjectMeta { return v.ObjectMeta }),
	"monitoring.coreos.com/v1 PrometheusRule": decode(func(v *monitoring.PrometheusRule) meta.ObjectMeta { return v.ObjectMeta }),
}

// An unknown field, also one in other case, and a field that occurs twice are errors.
func decode[T any](metaOf func(*T) meta.ObjectMeta) func([]byte) (any, meta.ObjectMeta, error) {
	return func(text []byte) (any, meta.ObjectMeta, error) {
		value := new(T)
		converted, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return value, meta.ObjectMeta{}, err
		}
		strict, err := json.UnmarshalStrict(converted, value)
		return value, metaOf(value), errors.Join(append(strict, err)...)
	}
}

var separator = regexp.MustCompile(`(?m)^---$`)

// Objects of a rendered file.
func decodeFile(file, text string) ([]object, error) {
	var objects []object
	for _, document := range separator.Split(text, -1) {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if kind == (meta.TypeMeta{}) && !strings.Contains(document, ":") {
			continue
		}
		decoder, known := decoders[kind.APIVersion+" "+kind.Kind]
		if !known {
			return nil, fmt.Errorf("%s: unknown kind %q of %q", file, kind.Kind, kind.APIVersion)
		}
		value, objectMeta, err := decoder([]byte(document))
		if err != nil {
			return nil, fmt.Errorf("%s: %s %s: %w", file, kind.Kind, objectMeta.Name, err)
		}
		objects = append(objects, object{file, document, objectMeta, kind.Kind, value})
	}
	return objects, nil
}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	loaded, err := loader.LoadDir(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func readValues(t *testing.T, file string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if file == "" {
		return values
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return values
}

// Rendered files by the names of their templates.
func renderFiles(loaded *chart.Chart, values map[string]any, releaseName string) (map[string]string, error) {
	options := common.ReleaseOptions{Name: releaseName, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, values, options, nil)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, text := range rendered {
		files[filepath.Base(name)] = text
	}
	return files, nil
}

func renderObjects(loaded *chart.Chart, values map[string]any, releaseName string) ([]object, error) {
	files, err := renderFiles(loaded, values, releaseName)
	if err != nil {
		return nil, err
	}
	var objects []object
	for name, text := range files {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		decoded, err := decodeFile(name, text)
		if err != nil {
			return nil, err
		}
		objects = append(objects, decoded...)
	}
	return objects, nil
}

// All values of one type among the objects.
func valuesOf[T any](objects []object) map[*T]object {
	found := map[*T]object{}
	for _, candidate := range objects {
		if value, fits := candidate.value.(*T); fits {
			found[value] = candidate
		}
	}
	return found
}
