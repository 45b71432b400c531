package helm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A pod template with the object that contains it.
type pod struct {
	owner    object
	template core.PodTemplateSpec
}

func podsOf(objects []object) []pod {
	var pods []pod
	for value, owner := range valuesOf[apps.Deployment](objects) {
		pods = append(pods, pod{owner, value.Spec.Template})
	}
	for value, owner := range valuesOf[batch.Job](objects) {
		pods = append(pods, pod{owner, value.Spec.Template})
	}
	return pods
}

// Collects what is wrong.
type findings []string

func (f *findings) add(where fmt.Stringer, format string, arguments ...any) {
	*f = append(*f, where.String()+": "+fmt.Sprintf(format, arguments...))
}

// Everything that is wrong with the objects. `secrets` are the Secrets that the user creates.
func checkObjects(objects []object, secrets map[string][]string) []string {
	var found findings
	checkNames(objects, &found)
	used := map[string]bool{}
	for _, pod := range podsOf(objects) {
		checkReferences(pod, objects, secrets, used, &found)
		checkVolumes(pod, &found)
		checkSecurity(pod, &found)
		checkProbes(pod, &found)
	}
	for name := range secrets {
		if !used[name] {
			found = append(found, "the Secret "+name+" is not used")
		}
	}
	checkSelectors(objects, &found)
	checkServices(objects, &found)
	checkPolicies(objects, &found)
	checkMonitors(objects, &found)
	checkListeners(objects, &found)
	slices.Sort(found)
	return found
}

func checkNames(objects []object, found *findings) {
	names := map[string]bool{}
	for _, each := range objects {
		if names[each.String()] {
			found.add(each, "the name exists twice")
		}
		names[each.String()] = true
		for _, problem := range validation.IsDNS1123Label(each.meta.Name) {
			found.add(each, "name: %s", problem)
		}
		for key, value := range each.meta.Labels {
			for _, problem := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
				found.add(each, "label %s: %s", key, problem)
			}
		}
		if !slices.Contains([]string{"", namespace}, each.meta.Namespace) {
			found.add(each, "it is in another namespace")
		}
	}
}

// Whether a pod can use an object: a hook runs before all objects that are no hooks exist, and is deleted afterwards.
func isAvailable(each object, to pod) bool {
	if !to.owner.isHook() {
		return !each.isHook()
	}
	weight := func(o object) int {
		number, _ := strconv.Atoi(o.meta.Annotations["helm.sh/hook-weight"])
		return number
	}
	return each.isHook() && weight(each) < weight(to.owner)
}

func checkReferences(from pod, objects []object, secrets map[string][]string, used map[string]bool, found *findings) {
	requireSecret := func(name string, keys ...string) {
		used[name] = true
		existing, exists := secrets[name]
		if !exists {
			found.add(from.owner, "the Secret %q does not exist", name)
		}
		for _, key := range keys {
			if exists && !slices.Contains(existing, key) {
				found.add(from.owner, "the Secret %s has no key %s", name, key)
			}
		}
	}
	requireConfigMap := func(name string) {
		for _, owner := range valuesOf[core.ConfigMap](objects) {
			if owner.meta.Name == name && isAvailable(owner, from) {
				return
			}
		}
		found.add(from.owner, "the ConfigMap %q does not exist", name)
	}
	spec := from.template.Spec
	for _, reference := range spec.ImagePullSecrets {
		requireSecret(reference.Name)
	}
	for _, container := range spec.Containers {
		for _, variable := range container.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil {
				requireSecret(variable.ValueFrom.SecretKeyRef.Name, variable.ValueFrom.SecretKeyRef.Key)
			}
		}
	}
	for _, volume := range spec.Volumes {
		switch {
		case volume.ConfigMap != nil:
			requireConfigMap(volume.ConfigMap.Name)
		case volume.Secret != nil:
			requireSecret(volume.Secret.SecretName, keysOf(volume.Secret.Items)...)
		case volume.Projected != nil:
			for _, source := range volume.Projected.Sources {
				requireSecret(source.Secret.Name, keysOf(source.Secret.Items)...)
			}
		}
	}
	if name := spec.ServiceAccountName; name != "" && name != "default" {
		exists := false
		for _, owner := range valuesOf[core.ServiceAccount](objects) {
			exists = exists || owner.meta.Name == name && isAvailable(owner, from)
		}
		if !exists {
			found.add(from.owner, "the ServiceAccount %q does not exist", name)
		}
	}
}

func keysOf(items []core.KeyToPath) []string {
	var keys []string
	for _, item := range items {
		keys = append(keys, item.Key)
	}
	return keys
}

func checkVolumes(in pod, found *findings) {
	mounted := map[string]bool{}
	for _, container := range in.template.Spec.Containers {
		paths := map[string]bool{}
		for _, mount := range container.VolumeMounts {
			mounted[mount.Name] = true
			if paths[mount.MountPath] {
				found.add(in.owner, "two volumes are mounted at %s", mount.MountPath)
			}
			paths[mount.MountPath] = true
			index := slices.IndexFunc(in.template.Spec.Volumes, func(v core.Volume) bool { return v.Name == mount.Name })
			if index < 0 {
				found.add(in.owner, "the volume %s does not exist", mount.Name)
				continue
			}
			volume := in.template.Spec.Volumes[index]
			if (volume.Secret != nil || volume.Projected != nil) && !mount.ReadOnly {
				found.add(in.owner, "the Secret in %s is not mounted read-only", mount.Name)
			}
		}
	}
	for _, volume := range in.template.Spec.Volumes {
		if !mounted[volume.Name] {
			found.add(in.owner, "the volume %s is not mounted", volume.Name)
		}
		var mode *int32
		switch {
		case volume.Secret != nil:
			mode = volume.Secret.DefaultMode
		case volume.Projected != nil:
			mode = volume.Projected.DefaultMode
		default:
			continue
		}
		if mode == nil || *mode&0o007 != 0 {
			found.add(in.owner, "all users can read the Secret in %s", volume.Name)
		}
	}
}

func isTrue(value *bool) bool  { return value != nil && *value }
func isFalse(value *bool) bool { return value != nil && !*value }

func checkSecurity(of pod, found *findings) {
	spec := of.template.Spec
	require := func(holds bool, what string) {
		if !holds {
			found.add(of.owner, "%s", what)
		}
	}
	require(isFalse(spec.AutomountServiceAccountToken), "the token of the service account is mounted")
	require(isFalse(spec.EnableServiceLinks), "service links set variables that evenkeeld refuses")
	context := spec.SecurityContext
	require(context != nil && isTrue(context.RunAsNonRoot) && context.RunAsUser != nil && *context.RunAsUser > 0, "it may run as root")
	require(context != nil && context.FSGroup != nil, "the user cannot read its Secrets")
	require(context != nil && context.SeccompProfile != nil && context.SeccompProfile.Type == core.SeccompProfileTypeRuntimeDefault,
		"the seccomp profile is not RuntimeDefault")
	for _, container := range spec.Containers {
		context := container.SecurityContext
		if context == nil {
			context = &core.SecurityContext{}
		}
		require(isTrue(context.ReadOnlyRootFilesystem), "the root file system can be written")
		require(isFalse(context.AllowPrivilegeEscalation), "privilege escalation is allowed")
		require(context.Capabilities != nil && slices.Contains(context.Capabilities.Drop, "ALL"), "capabilities are not dropped")
		require(!container.Resources.Limits.Memory().IsZero(), "the memory has no limit")
		require(!container.Resources.Requests.Cpu().IsZero(), "no processor is requested")
		require(strings.Contains(container.Image, ":"), "the image has no version")
	}
}

func portOf(container core.Container, port intstr.IntOrString) (core.ContainerPort, bool) {
	index := slices.IndexFunc(container.Ports, func(candidate core.ContainerPort) bool {
		return candidate.Name == port.StrVal && port.Type == intstr.String || port.Type == intstr.Int && candidate.ContainerPort == port.IntVal
	})
	if index < 0 {
		return core.ContainerPort{}, false
	}
	return container.Ports[index], true
}

func checkProbes(of pod, found *findings) {
	if of.owner.kind == "Job" {
		return
	}
	for _, container := range of.template.Spec.Containers {
		probes := map[string]*core.Probe{
			"/livez": container.LivenessProbe, "/readyz": container.ReadinessProbe, "startup": container.StartupProbe,
		}
		for name, probe := range probes {
			if probe == nil || probe.HTTPGet == nil {
				found.add(of.owner, "there is no probe %s", name)
				continue
			}
			if strings.HasPrefix(name, "/") && probe.HTTPGet.Path != name {
				found.add(of.owner, "the path of a probe is %s instead of %s", probe.HTTPGet.Path, name)
			}
			if port, exists := portOf(container, probe.HTTPGet.Port); !exists || port.Name != "admin" {
				found.add(of.owner, "a probe uses the port %s", probe.HTTPGet.Port.String())
			}
		}
		grace, stop := of.template.Spec.TerminationGracePeriodSeconds, container.Lifecycle
		if stop == nil || stop.PreStop == nil || stop.PreStop.Sleep == nil || grace == nil || *grace <= stop.PreStop.Sleep.Seconds+20 {
			found.add(of.owner, "it is killed before it has stopped")
		}
	}
}

// Pods that no hook runs, and that a selector selects.
func selectPods(objects []object, selector labels.Selector) []pod {
	return slices.DeleteFunc(podsOf(objects), func(candidate pod) bool {
		return candidate.owner.isHook() || !selector.Matches(labels.Set(candidate.template.Labels))
	})
}

func parseSelector(selector *meta.LabelSelector, of object, found *findings) labels.Selector {
	parsed, err := meta.LabelSelectorAsSelector(selector)
	if err != nil {
		found.add(of, "selector: %v", err)
		return labels.Nothing()
	}
	return parsed
}

func checkSelectors(objects []object, found *findings) {
	for value, owner := range valuesOf[apps.Deployment](objects) {
		own := labels.Set(value.Spec.Template.Labels)
		selector := parseSelector(value.Spec.Selector, owner, found)
		if selector.Empty() || !selector.Matches(own) || len(selectPods(objects, selector)) != 1 {
			found.add(owner, "the selector does not select exactly its own pods")
		}
		spread := value.Spec.Template.Spec.TopologySpreadConstraints
		if len(spread) == 0 {
			found.add(owner, "its pods are not spread")
		}
		for _, constraint := range spread {
			if !parseSelector(constraint.LabelSelector, owner, found).Matches(own) {
				found.add(owner, "the topology constraint does not select its own pods")
			}
		}
	}
	budgets := map[string]int{}
	for value, owner := range valuesOf[policy.PodDisruptionBudget](objects) {
		selected := selectPods(objects, parseSelector(value.Spec.Selector, owner, found))
		if len(selected) != 1 {
			found.add(owner, "it selects %d kinds of pods", len(selected))
		}
		for _, pod := range selected {
			budgets[pod.owner.meta.Name]++
		}
	}
	for name, count := range budgets {
		if count > 1 {
			*found = append(*found, fmt.Sprintf("%d disruption budgets select %s", count, name))
		}
	}
}

func checkServices(objects []object, found *findings) {
	for value, owner := range valuesOf[core.Service](objects) {
		selected := selectPods(objects, labels.SelectorFromSet(value.Spec.Selector))
		if len(value.Spec.Selector) == 0 || len(selected) == 0 {
			found.add(owner, "it selects no pods")
		}
		for _, port := range value.Spec.Ports {
			for _, pod := range selected {
				if _, exists := portOf(pod.template.Spec.Containers[0], port.TargetPort); !exists {
					found.add(owner, "%s has no port %s", pod.owner, port.TargetPort.String())
				}
			}
		}
	}
}

func checkPolicies(objects []object, found *findings) {
	policies := valuesOf[networking.NetworkPolicy](objects)
	for _, pod := range podsOf(objects) {
		isLimited := len(policies) == 0
		for value := range policies {
			selector, err := meta.LabelSelectorAsSelector(&value.Spec.PodSelector)
			isLimited = isLimited || err == nil && selector.Matches(labels.Set(pod.template.Labels)) &&
				slices.Contains(value.Spec.PolicyTypes, networking.PolicyTypeIngress)
		}
		if !isLimited {
			found.add(pod.owner, "no policy limits who connects")
		}
	}
	for value, owner := range policies {
		selected := selectPods(objects, parseSelector(&value.Spec.PodSelector, owner, found))
		if len(selected) == 0 {
			found.add(owner, "it selects no pods")
		}
		for _, rule := range value.Spec.Ingress {
			if len(rule.Ports) == 0 {
				found.add(owner, "a rule opens all ports")
			}
			for _, port := range rule.Ports {
				if port.Port.StrVal == "admin" && len(rule.From) == 0 {
					found.add(owner, "everybody reaches the port admin")
				}
				for _, pod := range selected {
					if _, exists := portOf(pod.template.Spec.Containers[0], *port.Port); !exists {
						found.add(owner, "%s has no port %s", pod.owner, port.Port.String())
					}
				}
			}
		}
	}
}

func checkMonitors(objects []object, found *findings) {
	for value, owner := range valuesOf[monitoring.ServiceMonitor](objects) {
		selector := parseSelector(&value.Spec.Selector, owner, found)
		count := 0
		for service, serviceOwner := range valuesOf[core.Service](objects) {
			if !selector.Matches(labels.Set(serviceOwner.meta.Labels)) {
				continue
			}
			count++
			for _, endpoint := range value.Spec.Endpoints {
				if !slices.ContainsFunc(service.Spec.Ports, func(port core.ServicePort) bool { return port.Name == endpoint.Port }) {
					found.add(owner, "%s has no port %s", serviceOwner, endpoint.Port)
				}
			}
			if !service.Spec.PublishNotReadyAddresses {
				found.add(owner, "pods that are not ready are not monitored")
			}
			if pods := selectPods(objects, labels.SelectorFromSet(service.Spec.Selector)); len(pods) != len(valuesOf[apps.Deployment](objects)) {
				found.add(owner, "it monitors %d of the services", len(pods))
			}
		}
		if count != 1 {
			found.add(owner, "it selects %d Services", count)
		}
		for _, endpoint := range value.Spec.Endpoints {
			if len(endpoint.RelabelConfigs) != 1 || *endpoint.RelabelConfigs[0].Replacement != "evenkeel" || endpoint.RelabelConfigs[0].TargetLabel != "job" {
				found.add(owner, "the job is not evenkeel, by which the alerts select")
			}
		}
	}
}

// Compares the ports of containers with the listen addresses in the configuration.
func checkListeners(objects []object, found *findings) {
	for _, pod := range podsOf(objects) {
		for _, volume := range pod.template.Spec.Volumes {
			for value, owner := range valuesOf[core.ConfigMap](objects) {
				if volume.ConfigMap == nil || volume.ConfigMap.Name != owner.meta.Name {
					continue
				}
				settings := map[string]any{}
				if _, err := toml.Decode(value.Data["evenkeeld.toml"], &settings); err != nil {
					found.add(owner, "evenkeeld.toml: %v", err)
				}
				for _, port := range pod.template.Spec.Containers[0].Ports {
					section, _ := settings[port.Name].(map[string]any)
					listen, _ := section["listen"].(string)
					if !strings.HasSuffix(listen, ":"+strconv.Itoa(int(port.ContainerPort))) {
						found.add(pod.owner, "the port %s is %d, but %s.listen is %q", port.Name, port.ContainerPort, port.Name, listen)
					}
				}
			}
		}
	}
}
