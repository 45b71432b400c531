package helm

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Other tests may use the processors meanwhile.
const startTimeout = 3 * time.Minute

// Waits until a condition holds.
func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen within %s", what, startTimeout)
		}
	}
}

// Starts a Postgres on a socket, with the role and the database of a server. Returns the URL.
func startPostgres(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Fatal("no Postgres in /usr/lib/postgresql: install the package postgresql")
	}
	programs, folder := found[len(found)-1], createFolder(t)
	var id, group uint32
	if os.Geteuid() == 0 {
		id, group = lookUpUser(t, "postgres")
		if err := os.Chown(folder, int(id), int(group)); err != nil {
			t.Fatal(err)
		}
	}
	command := func(name string, arguments ...string) *exec.Cmd {
		command := exec.Command(filepath.Join(programs, name), arguments...)
		command.Env, command.Dir = []string{"LC_ALL=C"}, folder
		runAs(command, id, group)
		return command
	}
	data := filepath.Join(folder, "data")
	if output, err := command("initdb", "--no-sync", "--auth=trust", "--username=postgres", data).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, output)
	}
	server := command("postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off")
	started := startProcess(t, server, syscall.SIGINT)
	waitUntil(t, "the start of Postgres", func() bool {
		if started.hasEnded() {
			t.Fatalf("Postgres has ended: %s", started.log.String())
		}
		return command("pg_isready", "--host", folder).Run() == nil
	})
	for _, statement := range []string{"CREATE ROLE evenkeel LOGIN NOSUPERUSER", "CREATE DATABASE evenkeel OWNER evenkeel"} {
		arguments := []string{"--host", folder, "--username", "postgres", "--command", statement}
		if output, err := command("psql", arguments...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", statement, err, output)
		}
	}
	return "postgres://evenkeel@localhost/evenkeel?host=" + folder
}

func lookUpUser(t *testing.T, name string) (id, group uint32) {
	t.Helper()
	account, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	for text, number := range map[string]*uint32{account.Uid: &id, account.Gid: &group} {
		parsed, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		*number = uint32(parsed)
	}
	return id, group
}

// A process of a test.
type process struct {
	command *exec.Cmd
	ended   chan struct{}
	// Complete once it has ended.
	log bytes.Buffer
	err error
}

// Starts a process. It ends with the test, by a signal.
func startProcess(t *testing.T, command *exec.Cmd, stop syscall.Signal) *process {
	t.Helper()
	started := &process{command: command, ended: make(chan struct{})}
	command.Stdout, command.Stderr = &started.log, &started.log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		started.err = command.Wait()
		close(started.ended)
	}()
	t.Cleanup(func() { started.stop(stop) })
	return started
}

func (p *process) stop(signal syscall.Signal) error {
	p.command.Process.Signal(signal)
	<-p.ended
	return p.err
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// The services start with the files of `make-keys`, as the user of the pods, with files that it cannot write.
func TestTheServicesOfTheChartStart(t *testing.T) {
	contents := secretContents(t)
	contents["url"] = startPostgres(t)
	for _, file := range []string{"", "values/files.yaml"} {
		values := readValues(t, file)
		objects, err := renderObjects(loadChart(t), values, release)
		if err != nil {
			t.Fatal(err)
		}
		var services []pod
		for _, pod := range podsOf(objects) {
			if !pod.owner.isHook() {
				services = append(services, pod)
				continue
			}
			job := createContainer(t, pod, objects, cases[0].secrets, contents)
			if output, err := job.run(t, job.arguments...); err != nil {
				t.Fatalf("%s: %v\n%s", pod.owner, err, output)
			}
		}
		for _, pod := range services {
			created := createContainer(t, pod, objects, cases[0].secrets, contents)
			startService(t, created, pod)
		}
		other := createContainer(t, services[0], objects, cases[0].secrets, secretContentsWithURL(t, contents["url"]))
		if output, err := listenLocally(other, services[0]).run(t, other.arguments...); err == nil || !strings.Contains(output, "other signing keys") {
			t.Errorf("a pod with other keys starts: %v\n%s", err, output)
		}
	}
}

func secretContentsWithURL(t *testing.T, url string) map[string]string {
	t.Helper()
	contents := secretContents(t)
	contents["url"] = url
	return contents
}

// Several services run on this machine, and no other machine may reach them.
func listenLocally(c *container, of pod) *container {
	for _, port := range of.template.Spec.Containers[0].Ports {
		c.environment = append(c.environment, "EVENKEELD_"+strings.ToUpper(port.Name)+"__LISTEN=127.0.0.1:0")
	}
	return c
}

// Starts a service and asks its probes. It ends with the test.
func startService(t *testing.T, created *container, of pod) {
	t.Helper()
	readyFile := created.folder + "/var/lib/evenkeel/ready.json"
	command := listenLocally(created, of).command(t, append(created.arguments, "--ready-file", readyFile)...)
	started := startProcess(t, command, syscall.SIGKILL)
	var ready []byte
	waitUntil(t, "the start of "+of.owner.String(), func() bool {
		if started.hasEnded() {
			t.Fatalf("%s has ended: %v\n%s", of.owner, started.err, started.log.String())
		}
		text, err := os.ReadFile(readyFile)
		ready = text
		return err == nil
	})
	var addresses map[string]string
	if err := json.Unmarshal(ready, &addresses); err != nil {
		t.Fatal(err)
	}
	spec := of.template.Spec.Containers[0]
	for _, port := range spec.Ports {
		if addresses[port.Name] == "" {
			t.Errorf("%s has a port %s, but no such listener: %s", of.owner, port.Name, ready)
		}
	}
	if len(addresses) != len(spec.Ports) {
		t.Errorf("%s has other listeners than ports: %s", of.owner, ready)
	}
	// The kubelet does not verify certificates either.
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	probe := spec.ReadinessProbe.HTTPGet
	for _, path := range []string{spec.LivenessProbe.HTTPGet.Path, probe.Path} {
		response, err := client.Get(strings.ToLower(string(probe.Scheme)) + "://" + addresses["admin"] + path)
		if err != nil {
			t.Fatalf("%s %s: %v", of.owner, path, err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %s %s", of.owner, path, response.Status, body)
		}
	}
	checkCertificates(t, created, addresses)
	if address := addresses["rest"]; address != "" {
		logIn(t, created, address)
	}
	if err := started.stop(syscall.SIGTERM); err != nil {
		t.Errorf("%s: %v\n%s", of.owner, err, started.log.String())
	}
}

// The listeners have certificates of the authority in the Secret, for the names of their Services.
func checkCertificates(t *testing.T, created *container, addresses map[string]string) {
	t.Helper()
	authority, err := os.ReadFile(created.folder + "/etc/evenkeel/ca/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	for name, address := range addresses {
		if name == "admin" {
			continue
		}
		for _, serverName := range []string{"evenkeel-" + name, "evenkeel-" + name + ".fleet.svc"} {
			connection, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: serverName})
			if err != nil {
				t.Errorf("%s as %s: %v", name, serverName, err)
				continue
			}
			connection.Close()
		}
	}
}

// Runs the commands of NOTES.txt, without kubectl.
func logIn(t *testing.T, created *container, address string) {
	t.Helper()
	command := created.command(t, "token", "operator", "--role", "admin", "--ttl", "30days")
	token, err := command.Output()
	if err != nil {
		t.Fatalf("token: %v", err)
	}
	authority, err := created.command(t, "ca").Output()
	if err != nil {
		t.Fatalf("ca: %v", err)
	}
	folder := t.TempDir()
	for name, text := range map[string][]byte{"evenkeel-token": token, "evenkeel-ca.pem": authority} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, _ := strings.Cut(address, ":")
	login := exec.Command(filepath.Join(os.Getenv("EVENKEEL_TEST_PROGRAMS"), "evenkeel"), "login", "--server", "https://localhost:"+port,
		"--ca", "evenkeel-ca.pem", "--project", "default", "--token-file", "evenkeel-token")
	login.Dir, login.Env = folder, []string{"HOME=" + folder}
	if output, err := login.CombinedOutput(); err != nil || !strings.Contains(string(output), "logged in") {
		t.Errorf("login: %v\n%s", err, output)
	}
}
