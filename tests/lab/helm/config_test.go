package helm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

// Contents of all Secrets that users create, by the key. Keys and authority are those of deploy/helm/make-keys.
func secretContents(t *testing.T) map[string]string {
	t.Helper()
	contents := map[string]string{
		"url":               "postgres://evenkeel:secret@db.example/evenkeel?sslmode=verify-full",
		"uri":               "postgresql://evenkeel:secret@db.example:5432/evenkeel?sslmode=verify-full&sslrootcert=/etc/evenkeel/database/ca.crt",
		"password":          "secret",
		".dockerconfigjson": "{}",
		"users.toml":        "",
	}
	for _, prefix := range []string{"", "-2025"} {
		folder := filepath.Join(t.TempDir(), "keys")
		output, err := exec.Command(root+"/deploy/helm/make-keys", folder).CombinedOutput()
		if err != nil {
			t.Fatalf("make-keys: %v\n%s", err, output)
		}
		for _, key := range sharedKeys {
			text, err := os.ReadFile(filepath.Join(folder, key))
			if err != nil {
				t.Fatal(err)
			}
			contents[strings.TrimSuffix(key, ".pem")+prefix+".pem"] = string(text)
		}
	}
	contents["tls.crt"], contents["tls.key"] = createCertificate(t, "updates.example", "nodes.updates.example")
	contents["ca.crt"] = contents["ca.pem"]
	return contents
}

func createCertificate(t *testing.T, names ...string) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, bytes []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", encoded)
}

// A container of a pod on this machine: its volumes below `folder`, and its environment.
type container struct {
	folder      string
	environment []string
	arguments   []string
}

// Replaces the folders of the container by those on this machine.
func (c *container) translate(text string) string {
	for _, path := range []string{"/etc/evenkeel", "/var/lib/evenkeel"} {
		text = strings.ReplaceAll(text, path, c.folder+path)
	}
	return text
}

func (c *container) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(c.folder, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(c.translate(text)), 0o440); err != nil {
		t.Fatal(err)
	}
}

// Writes the files of the volumes as Kubernetes mounts them.
func createContainer(t *testing.T, of pod, objects []object, secrets map[string][]string, contents map[string]string) *container {
	t.Helper()
	spec := of.template.Spec.Containers[0]
	created := &container{folder: t.TempDir(), arguments: spec.Args}
	files := func(path, name string, items []core.KeyToPath) {
		if len(items) == 0 {
			for _, key := range secrets[name] {
				items = append(items, core.KeyToPath{Key: key, Path: key})
			}
		}
		for _, item := range items {
			created.write(t, path+"/"+item.Path, contents[item.Key])
		}
	}
	for _, mount := range spec.VolumeMounts {
		index := slices.IndexFunc(of.template.Spec.Volumes, func(v core.Volume) bool { return v.Name == mount.Name })
		volume := of.template.Spec.Volumes[index]
		switch {
		case volume.Secret != nil:
			files(mount.MountPath, volume.Secret.SecretName, volume.Secret.Items)
		case volume.Projected != nil:
			for _, source := range volume.Projected.Sources {
				files(mount.MountPath, source.Secret.Name, source.Secret.Items)
			}
		case volume.ConfigMap != nil:
			for value, owner := range valuesOf[core.ConfigMap](objects) {
				if owner.meta.Name == volume.ConfigMap.Name {
					created.write(t, mount.MountPath+"/evenkeeld.toml", value.Data["evenkeeld.toml"])
				}
			}
		}
	}
	for _, variable := range spec.Env {
		value := variable.Value
		if source := variable.ValueFrom; source != nil && source.SecretKeyRef != nil {
			value = contents[source.SecretKeyRef.Key]
		} else if source != nil {
			value = fmt.Sprint(spec.Resources.Limits.Memory().Value())
		}
		created.environment = append(created.environment, variable.Name+"="+created.translate(value))
	}
	return created
}

func (c *container) run(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	programs := os.Getenv("EVENKEEL_TEST_PROGRAMS")
	if programs == "" {
		t.Fatal("EVENKEEL_TEST_PROGRAMS must name the folder of the program evenkeeld; `make test-helm` sets it")
	}
	command := exec.Command(filepath.Join(programs, "evenkeeld"), arguments...)
	command.Env = c.environment
	output, err := command.CombinedOutput()
	return string(output), err
}

func TestEvenkeeldAcceptsTheConfigurationOfEachPod(t *testing.T) {
	loaded, contents := loadChart(t), secretContents(t)
	for _, each := range cases {
		objects, err := renderObjects(loaded, readValues(t, each.file), release)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range podsOf(objects) {
			created := createContainer(t, pod, objects, each.secrets, contents)
			output, err := created.run(t, "check")
			if pod.owner.kind == "Job" {
				// It has no keys and no certificates. Each command reads the settings.
				output, err = created.run(t, "openapi")
			}
			if err != nil || strings.Contains(output, "warning: ") {
				t.Errorf("%s, %s: %v\n%s", each.name, pod.owner, err, output)
			}
			// The program has this command.
			if output, err := created.run(t, append(slices.Clone(created.arguments), "--help")...); err != nil {
				t.Errorf("%s, %s %v: %v\n%s", each.name, pod.owner, created.arguments, err, output)
			}
		}
	}
}

// The check of the previous test finds faults of the settings, of the environment and of the files.
func TestEvenkeeldRefusesBadConfigurations(t *testing.T) {
	loaded := loadChart(t)
	for _, each := range []struct{ section, key, value, secret, fault string }{
		{section: "rest", key: "request_timeot", value: "1s", fault: "rest.request_timeot"},
		{section: "maintenance_manager", key: "poll_interval", value: "often", fault: "maintenance_manager.poll_interval"},
		{secret: "signing.pem", fault: "auth.keys"},
		{secret: "operators-signing.pem", fault: "auth.keys"},
		{secret: "ca-key.pem", fault: "auth.ca"},
		{secret: "url", fault: "database.url"},
	} {
		contents, values := secretContents(t), map[string]any{}
		if each.secret != "" {
			contents[each.secret] = "broken"
		} else {
			values["config"] = map[string]any{each.section: map[string]any{each.key: each.value}}
		}
		objects, err := renderObjects(loaded, values, release)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range podsOf(objects) {
			command := "check"
			if pod.owner.isHook() && each.secret != "" {
				continue
			} else if pod.owner.isHook() {
				command = "openapi"
			}
			created := createContainer(t, pod, objects, cases[0].secrets, contents)
			if output, err := created.run(t, command); err == nil || !strings.Contains(output, each.fault) {
				t.Errorf("%s: expected a fault of %s: %v\n%s", pod.owner, each.fault, err, output)
			}
		}
	}
}
