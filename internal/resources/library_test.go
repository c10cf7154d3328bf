package resources

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsmpool"
)

// inPods are members whose libraries the gateways' pods have: two partitions of
// one, and another vendor's.
func inPods(t *testing.T, change ...func(*v1alpha1.HSMPool)) []hsmpool.Library {
	t.Helper()
	pool := softPool()
	partition := func(name string) v1alpha1.HSMMember {
		return v1alpha1.HSMMember{Name: name, Module: &v1alpha1.HSMModuleMember{HSMModule: vendor().Daemon.Module,
			HSMToken: v1alpha1.HSMToken{Token: name, PINSecretRef: v1alpha1.SecretReference{Name: name + "-pin"}}}}
	}
	pool.Spec.Members = append(pool.Spec.Members, partition("luna-a"), partition("luna-b"), v1alpha1.HSMMember{Name: "nshield", Module: &v1alpha1.HSMModuleMember{
		HSMModule: v1alpha1.HSMModule{Image: "registry.example/nfast:13", Folder: "/opt/nfast", Path: "/opt/nfast/toolkits/pkcs11/libcknfast.so", Copy: true,
			Files:       []v1alpha1.HSMModuleFiles{{Folder: "/srv/kmdata", PersistentVolumeClaimRef: &v1alpha1.PersistentVolumeClaimReference{Name: "world"}}},
			Environment: []v1alpha1.HSMModuleVariable{{Name: "NFAST_KMDATA", Value: "/srv/kmdata"}}},
		HSMToken: v1alpha1.HSMToken{Serial: "42", PINSecretRef: v1alpha1.SecretReference{Name: "card-pin"}}}})
	for _, c := range change {
		c(pool)
	}
	libraries, err := hsmpool.InPods(pool)
	if err != nil {
		t.Fatal(err)
	}
	return libraries
}

func withLibraries(t *testing.T, change ...func(*v1alpha1.HSMPool)) *appsv1.Deployment {
	t.Helper()
	return WithLibraries(Deployment(example(), settings), "prod", inPods(t, change...), settings)
}

func TestAPodWithLibrariesIsTheGoldenOne(t *testing.T) {
	golden(t, "deployment-libraries", withLibraries(t))
	pool, m := softPool(), v1alpha1.HSMMember{Name: "luna", Module: &v1alpha1.HSMModuleMember{HSMModule: vendor().Daemon.Module, HSMToken: vendor().Daemon.HSMToken}}
	golden(t, "hsmd-module-config", HsmdConfig(pool, m))
	golden(t, "hsmd-module-networkpolicy", HsmdNetworkPolicy(pool, m, settings))
	// The operator's daemon is that of a daemon, but for where the device is.
	spec, device := HsmdStatefulSet(pool, m, settings).Spec.Template.Spec, HsmdStatefulSet(pool, vendor(), settings).Spec.Template.Spec
	device.NodeSelector, device.Tolerations, device.SecurityContext.SupplementalGroups = nil, nil, nil
	device.Containers[0].Resources = hsmdDefaults()
	if diff := cmp.Diff(device, spec); diff != "" {
		t.Errorf("the pod of the operator's daemon:\n%s", diff)
	}
}

func TestAPodWithoutLibrariesIsAsItWas(t *testing.T) {
	libraries, err := hsmpool.InPods(softPool())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Deployment(example(), settings), WithLibraries(Deployment(example(), settings), "dev", libraries, settings)); diff != "" {
		t.Errorf("a pool without modules changes the pods:\n%s", diff)
	}
}

// All else is as it is wanted by now.
func TestAPodThatKeepsItsLibraries(t *testing.T) {
	g, newer := example(), settings
	g.Spec.Replicas = new(int32(7))
	newer.Image = "registry.example/gateway:next"
	want := WithLibraries(Deployment(g, newer), "prod", inPods(t), newer)
	if got := KeepLibraries(Deployment(g, newer), withLibraries(t)); !HasLibraries(got) {
		t.Error("the Deployment does not say that it has libraries")
	} else if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the pods:\n%s", diff)
	}
	if HasLibraries(Deployment(g, newer)) {
		t.Error("a Deployment without libraries has some")
	}
}

// HAProxy's container alone has the libraries and the PINs, and nothing has a
// PIN but as a file.
func TestWhoSeesALibrary(t *testing.T) {
	spec := withLibraries(t).Spec.Template.Spec
	restrictedPod(t, spec)
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		for _, m := range c.VolumeMounts {
			copies := strings.HasPrefix(c.Name, "copy-") && m.MountPath == copyDir
			if strings.HasPrefix(m.Name, "hsm-") && c.Name != "haproxy" && !copies {
				t.Errorf("container %s: %+v", c.Name, m)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				t.Errorf("container %s: variable %+v", c.Name, e)
			}
		}
	}
}

// A Secret or a ConfigMap that is not there is a member that is down: the
// listeners with other keys serve.
func TestAPodStartsWithoutWhatALibraryLacks(t *testing.T) {
	for _, v := range withLibraries(t).Spec.Template.Spec.Volumes {
		switch {
		case !strings.HasPrefix(v.Name, "hsm-"):
		case v.Secret != nil && (v.Secret.Optional == nil || !*v.Secret.Optional), v.ConfigMap != nil && (v.ConfigMap.Optional == nil || !*v.ConfigMap.Optional):
			t.Errorf("the pod waits for the volume %s: %+v", v.Name, v.VolumeSource)
		}
	}
}

// What is told by a revision is a reload; what the pod is made of is another pod.
func TestWhatOfAPoolReplacesPods(t *testing.T) {
	before := withLibraries(t).Spec.Template
	for name, c := range map[string]struct {
		change   func(*v1alpha1.HSMPool)
		replaces bool
	}{
		"order":                {func(p *v1alpha1.HSMPool) { p.Spec.Order = v1alpha1.HSMSpread }, false},
		"the order of members": {func(p *v1alpha1.HSMPool) { slices.Reverse(p.Spec.Members) }, false},
		"sessions":             {func(p *v1alpha1.HSMPool) { p.Spec.Members[2].Module.Sessions = 9 }, false},
		"a member of another kind": {func(p *v1alpha1.HSMPool) {
			p.Spec.Members = append(p.Spec.Members, vendor())
		}, false},
		"the image": {func(p *v1alpha1.HSMPool) { p.Spec.Members[4].Module.Image = "registry.example/nfast:14" }, true},
		"the token": {func(p *v1alpha1.HSMPool) { p.Spec.Members[3].Module.Token = "luna-c" }, true},
		"the PIN's Secret": {func(p *v1alpha1.HSMPool) {
			p.Spec.Members[3].Module.PINSecretRef.Name = "other"
		}, true},
		"a variable": {func(p *v1alpha1.HSMPool) { p.Spec.Members[4].Module.Environment[0].Value = "/srv/other" }, true},
		"one less":   {func(p *v1alpha1.HSMPool) { p.Spec.Members = p.Spec.Members[:4] }, true},
	} {
		if replaced := cmp.Diff(before, withLibraries(t, c.change).Spec.Template) != ""; replaced != c.replaces {
			t.Errorf("%s: pods are replaced: %t, want %t", name, replaced, c.replaces)
		}
	}
}

// The agent is told of the paths and tokens; HAProxy has the variables, each once.
func TestVariablesOfLibraries(t *testing.T) {
	spec := withLibraries(t).Spec.Template.Spec
	names := func(c corev1.Container) (names []string) {
		for _, e := range c.Env {
			names = append(names, e.Name)
		}
		return names
	}
	if got, want := names(spec.Containers[0]), []string{"QTLS_MEMORY_LIMIT", "QTLS_PKCS11_CONFIG", "ChrystokiConfigurationPath", "NFAST_KMDATA"}; !slices.Equal(got, want) {
		t.Errorf("HAProxy has %q, want %q", got, want)
	}
	agent := spec.InitContainers[0]
	const want = `{"luna-a":{"module":"/opt/luna/lib/libCryptoki2.so","token":"luna-a"},"luna-b":{"module":"/opt/luna/lib/libCryptoki2.so","token":"luna-b"},"nshield":{"module":"/opt/nfast/toolkits/pkcs11/libcknfast.so","serial":"42"}}`
	if last := agent.Env[len(agent.Env)-1]; agent.Name != "agent" || last.Name != "QTLS_HSM_LIBRARIES" || last.Value != want {
		t.Errorf("container %s has %+v, want %s", agent.Name, last, want)
	}
}
