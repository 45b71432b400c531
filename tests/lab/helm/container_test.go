package helm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	core "k8s.io/api/core/v1"
)

// A container of a pod on this machine: its volumes below `folder`, its environment and its user.
type container struct {
	folder      string
	environment []string
	arguments   []string
	user, group uint32
}

// A folder that every user can enter.
func createFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "evenkeel-helm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Replaces the folders of the container by those on this machine.
func (c *container) translate(text string) string {
	for _, path := range []string{"/etc/evenkeel", "/var/lib/evenkeel"} {
		text = strings.ReplaceAll(text, path, c.folder+path)
	}
	return text
}

// Writes a file of a volume. As root, it gets the owner and the mode that Kubernetes gives it.
func (c *container) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(c.folder, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(c.translate(text)), 0o440); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 0, int(c.group)); err != nil {
			t.Fatal(err)
		}
	}
}

// Writes the files of the volumes as Kubernetes mounts them.
func createContainer(t *testing.T, of pod, objects []object, secrets map[string][]string, contents map[string]string) *container {
	t.Helper()
	spec, context := of.template.Spec.Containers[0], of.template.Spec.SecurityContext
	created := &container{
		folder: createFolder(t), arguments: spec.Args, user: uint32(*context.RunAsUser), group: uint32(*context.FSGroup),
	}
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
		default:
			createEmptyVolume(t, created.folder+mount.MountPath)
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

// An empty volume belongs to root, and everybody can write to it.
func createEmptyVolume(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
}

// A command with the environment of the container, as its user if this test runs as root.
func (c *container) command(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.Command(evenkeeld(t), arguments...)
	command.Env, command.Dir = c.environment, "/"
	runAs(command, c.user, c.group)
	return command
}

func runAs(command *exec.Cmd, user, group uint32) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: group}
	}
}

func (c *container) run(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	output, err := c.command(t, arguments...).CombinedOutput()
	return string(output), err
}

var programFolder string

// The program, in a folder that the user of a container can enter.
func evenkeeld(t *testing.T) string {
	t.Helper()
	programs := os.Getenv("EVENKEEL_TEST_PROGRAMS")
	if programs == "" {
		t.Fatal("EVENKEEL_TEST_PROGRAMS must name the folder of the program evenkeeld; `make test-helm` sets it")
	}
	path := filepath.Join(programFolder, "evenkeeld")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	text, err := os.ReadFile(filepath.Join(programs, "evenkeeld"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
