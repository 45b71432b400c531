package helm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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
