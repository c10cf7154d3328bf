package generator

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/plan"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func benchmark() *v1alpha1.QTLSBenchmark {
	return &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "scaling", UID: "7d1c"}, Spec: v1alpha1.QTLSBenchmarkSpec{
		GatewayRef: v1alpha1.BenchmarkGateway{Name: "web"},
		Replicas:   []int32{1, 4},
		Modes: []v1alpha1.BenchmarkMode{
			{Name: "full", Groups: []v1alpha1.Group{"secp256r1", "X25519MLKEM768"}, SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65", "ecdsa_secp256r1_sha256"}},
			{Name: "resumed", Groups: []v1alpha1.Group{"x25519"}, SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa44"}, Handshake: v1alpha1.BenchmarkHandshakeResumed},
		},
		Load: v1alpha1.BenchmarkLoad{Preset: v1alpha1.BenchmarkPresetShort, VirtualUsersPerReplica: ptr.To[int32](4)},
	}}
}

func gateway(listeners ...v1alpha1.Listener) *v1alpha1.QTLSGateway {
	return &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1alpha1.QTLSGatewaySpec{Listeners: listeners}}
}

var measurement = plan.Measurement{Number: 12, Repetition: 2, Replicas: 4, Mode: "full", Phase: plan.Capacity}

func TestTheTargetIsAListenerAndItsName(t *testing.T) {
	https := v1alpha1.Listener{Name: "https", Port: 8443, Hostnames: []v1alpha1.Hostname{"www.example.com", "example.com"}}
	wild := v1alpha1.Listener{Name: "wild", Port: 443, Hostnames: []v1alpha1.Hostname{"*.example.com"}}
	anything := v1alpha1.Listener{Name: "any", Port: 443}
	for name, c := range map[string]struct {
		target    v1alpha1.BenchmarkTarget
		mode      v1alpha1.BenchmarkMode
		listeners []v1alpha1.Listener
		want      Target
		says      string
	}{
		"the first":  {v1alpha1.BenchmarkTarget{}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{https, wild}, Target{"web-gateway.shop.svc", 8443, "www.example.com"}, ""},
		"by name":    {v1alpha1.BenchmarkTarget{Listener: "wild", ServerName: "a.example.com"}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{https, wild}, Target{"web-gateway.shop.svc", 443, "a.example.com"}, ""},
		"no such":    {v1alpha1.BenchmarkTarget{Listener: "http"}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{https, wild}, Target{}, `no listener "http"; it has https, wild`},
		"a wildcard": {v1alpha1.BenchmarkTarget{}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{wild}, Target{}, `spec.target.serverName: listener "wild"`},
		"a mode's own": {v1alpha1.BenchmarkTarget{Listener: "wild", ServerName: "a.example.com"}, v1alpha1.BenchmarkMode{Name: "hsm", Listener: "https"}, []v1alpha1.Listener{wild, https},
			Target{"web-gateway.shop.svc", 8443, "www.example.com"}, ""},
		"a mode's own name": {v1alpha1.BenchmarkTarget{Listener: "https", ServerName: "a.example.com"}, v1alpha1.BenchmarkMode{Name: "hsm", ServerName: "example.com"}, []v1alpha1.Listener{wild, https},
			Target{"web-gateway.shop.svc", 8443, "example.com"}, ""},
		"a mode's own that is not there": {v1alpha1.BenchmarkTarget{}, v1alpha1.BenchmarkMode{Name: "hsm", Listener: "http"}, []v1alpha1.Listener{https}, Target{}, `spec.modes: mode "hsm": listener: QTLSGateway "web" has no listener "http"; it has https`},
		"a mode's own of wildcards":      {v1alpha1.BenchmarkTarget{ServerName: "a.example.com"}, v1alpha1.BenchmarkMode{Name: "hsm", Listener: "wild"}, []v1alpha1.Listener{https, wild}, Target{}, `spec.modes: mode "hsm": serverName: listener "wild"`},
		"a listener that passes TLS on":  {v1alpha1.BenchmarkTarget{}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{{Name: "tls", Port: 443, Protocol: v1alpha1.ProtocolTLSPassthrough, Hostnames: []v1alpha1.Hostname{"a.example.com"}}}, Target{}, "passes TLS on"},
		"one that wants certificates":    {v1alpha1.BenchmarkTarget{}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{{Name: "tls", Port: 443, Hostnames: []v1alpha1.Hostname{"a.example.com"}, ClientAuthentication: &v1alpha1.ClientAuthentication{Mode: v1alpha1.ClientAuthenticationRequired}}}, Target{}, "requires certificates of clients"},
		"one that may have certificates": {v1alpha1.BenchmarkTarget{}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{{Name: "tls", Port: 443, Hostnames: []v1alpha1.Hostname{"a.example.com"}, ClientAuthentication: &v1alpha1.ClientAuthentication{Mode: v1alpha1.ClientAuthenticationOptional}}}, Target{"web-gateway.shop.svc", 443, "a.example.com"}, ""},
		"a listener of all names":        {v1alpha1.BenchmarkTarget{}, v1alpha1.BenchmarkMode{}, []v1alpha1.Listener{anything}, Target{}, "say which name clients ask for"},
	} {
		b := benchmark()
		b.Spec.Target = c.target
		got, err := TargetOf(b, c.mode, gateway(c.listeners...))
		if got != c.want || (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestTheLoadOfAMeasurement(t *testing.T) {
	b := benchmark()
	p := plan.Of(b.Spec, 1)
	target := gateway(v1alpha1.Listener{Name: "https", Port: 8443, Hostnames: []v1alpha1.Hostname{"www.example.com"}})
	l, err := LoadOf(b, p, measurement, target, 1, 0, noon)
	if err != nil {
		t.Fatal(err)
	}
	want := load.Load{Version: load.Version, Point: "7d1c/r2-n4-full-Capacity", Pods: 1, Start: noon.Add(10 * time.Second).UnixNano(), WarmUp: 2 * time.Second, Window: 5 * time.Second,
		Phase: load.Capacity, VUs: 16, Operation: load.Handshake, Client: load.Client{Host: "web-gateway.shop.svc", Port: 8443, SNI: "www.example.com",
			Groups: []string{"P-256", "X25519MLKEM768"}, SignatureAlgorithms: []string{"mldsa65", "ecdsa_secp256r1_sha256"}, CAFile: "/etc/qtls-benchmark/ca.crt"}}
	same := func(got, want load.Load) {
		t.Helper()
		a, _ := json.Marshal(got)
		if b, _ := json.Marshal(want); string(a) != string(b) {
			t.Errorf("%s\nwant %s", a, b)
		}
	}
	same(l, want)

	// A second attempt gives the pods more time; so do several pods.
	b.Spec.Generator.Pods = ptr.To[int32](32)
	l, err = LoadOf(b, p, measurement, target, 2, 0, noon)
	if err != nil || l.Start != noon.Add(60*time.Second).UnixNano() || l.Pods != 32 || l.VUs != 32 {
		t.Errorf("%+v, %v: want one virtual user a pod, at least", l, err)
	}
	b.Spec.Generator.Pods = nil

	// Thousands of clients are not ready at once.
	p.Load.VirtualUsersPerReplica = 1000
	if l, err = LoadOf(b, p, measurement, target, 2, 0, noon); err != nil || l.VUs != 4000 || l.Start != noon.Add(60*time.Second).UnixNano() {
		t.Errorf("%+v, %v: want 10 s more than for few clients, and in the second attempt three times that", l, err)
	}
	p = plan.Of(b.Spec, 1)

	m := measurement
	m.Mode, m.Phase = "resumed", plan.Latency
	l, err = LoadOf(b, p, m, target, 1, 123.4, noon)
	if err != nil || l.Rate != 123 || l.Phase != load.Latency || !l.Client.Resumption || l.VUs != 32 || l.Point != "7d1c/r2-n4-resumed-Latency" {
		t.Errorf("%+v, %v", l, err)
	}
	// No more clients than a second's handshakes: each needs a session by the end of the warm-up.
	if l, err = LoadOf(b, p, m, target, 1, 21, noon); err != nil || l.VUs != 21 {
		t.Errorf("a slow gateway: %+v, %v", l, err)
	}
	if l, err = LoadOf(b, p, m, target, 1, 0.2, noon); err != nil || l.Rate != 1 || l.VUs != 1 {
		t.Errorf("a very slow gateway: %+v, %v", l, err)
	}
	busy := p
	busy.Load.VirtualUsersPerReplica = 1500
	if l, err = LoadOf(b, busy, m, target, 1, 1e6, noon); err != nil || l.VUs != load.MostVUs {
		t.Errorf("a rate that would take more clients than a load may have: %d, %v", l.VUs, err)
	}
	busy.Load.VirtualUsersPerReplica = 3000
	if _, err = LoadOf(b, busy, m, target, 1, 1, noon); err == nil || !strings.Contains(err.Error(), "spec.load.virtualUsersPerReplica: 3000 for each of 4 replicas") {
		t.Errorf("more clients than a load may have: %v", err)
	}
	b.Spec.Modes[1].Groups = []v1alpha1.Group{"smaug_t1"}
	if l, err = LoadOf(b, p, m, target, 1, 1, noon); err != nil || l.Client.Provider != "oqsprovider" {
		t.Errorf("a group of the provider's: %+v, %v", l, err)
	}
	for _, c := range []struct {
		mode v1alpha1.BenchmarkMode
		path string
		size int
	}{
		{v1alpha1.BenchmarkMode{Operation: v1alpha1.BenchmarkOperationRequest}, "/", 0},
		{v1alpha1.BenchmarkMode{Operation: v1alpha1.BenchmarkOperationRequest, Path: "/health"}, "/health", 0},
		{v1alpha1.BenchmarkMode{Operation: v1alpha1.BenchmarkOperationTransfer, Path: "/upload", Size: "64Ki"}, "/upload", 64 << 10},
	} {
		c.mode.Name, c.mode.Groups, c.mode.SignatureSchemes = "resumed", b.Spec.Modes[1].Groups, b.Spec.Modes[1].SignatureSchemes
		b.Spec.Modes[1] = c.mode
		if l, err = LoadOf(b, p, m, target, 1, 1, noon); err != nil || string(l.Operation) != string(c.mode.Operation) || l.Path != c.path || l.Size != c.size {
			t.Errorf("%+v: %+v, %v", c.mode, l, err)
		}
	}
	m.Mode = "other"
	if _, err = LoadOf(b, p, m, target, 1, 1, noon); err == nil {
		t.Error("a mode that is not there")
	}
}

func TestAJobIsWhatARestrictedNamespaceTakesAndTellsWhatItMeasures(t *testing.T) {
	b := benchmark()
	b.Spec.Generator = v1alpha1.BenchmarkGenerator{Pods: ptr.To[int32](2), NodeSelector: map[string]string{"pool": "load"}, Tolerations: []corev1.Toleration{{Key: "load"}},
		Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}}}
	p := plan.Of(b.Spec, 1)
	l, err := LoadOf(b, p, measurement, gateway(v1alpha1.Listener{Name: "https", Port: 443, Hostnames: []v1alpha1.Hostname{"www.example.com"}}), 2, 0, noon)
	if err != nil {
		t.Fatal(err)
	}
	job, err := Job(b, "scaling-gateway", measurement, 2, l, Settings{Image: "k6:1", ImagePullPolicy: corev1.PullAlways, ImagePullSecrets: []string{"registry"}})
	if err != nil {
		t.Fatal(err)
	}
	if job.Name != "scaling-0012-2" || *job.Spec.Completions != 2 || *job.Spec.Parallelism != 2 || *job.Spec.CompletionMode != "Indexed" || *job.Spec.BackoffLimit != 0 {
		t.Errorf("%s: %+v", job.Name, job.Spec)
	}
	// Three times 20 seconds to start, 2 and 5 of load.
	if got, want := *job.Spec.ActiveDeadlineSeconds, int64((patience + 67*time.Second).Seconds()); got != want {
		t.Errorf("active deadline %d, want %d", got, want)
	}
	if identity, err := IdentityOf(job); err != nil || identity != (Identity{"r2-n4-full-Capacity", 2}) {
		t.Errorf("%+v, %v", identity, err)
	}
	if !metav1.IsControlledBy(job, b) || job.Labels[v1alpha1.LabelBenchmark] != "scaling" || job.Spec.Template.Labels[v1alpha1.LabelGateway] != "" {
		t.Errorf("%+v", job.ObjectMeta)
	}
	pod := job.Spec.Template.Spec
	c := pod.Containers[0]
	if !*pod.SecurityContext.RunAsNonRoot || *pod.AutomountServiceAccountToken || *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
		c.SecurityContext.Capabilities.Drop[0] != "ALL" || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%+v, %+v", pod.SecurityContext, c.SecurityContext)
	}
	if c.Image != "k6:1" || c.ImagePullPolicy != corev1.PullAlways || pod.ImagePullSecrets[0].Name != "registry" || pod.NodeSelector["pool"] != "load" || pod.Tolerations[0].Key != "load" || c.Resources.Limits.Memory().String() != "2Gi" {
		t.Errorf("%+v", pod)
	}
	if back, err := load.Parse(c.Env[0].Value); c.Env[0].Name != load.Variable || err != nil || back.Point != l.Point {
		t.Errorf("%+v, %v", c.Env, err)
	}
	away := pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm
	if away.LabelSelector.MatchLabels[v1alpha1.LabelGateway] != "scaling-gateway" || away.TopologyKey != corev1.LabelHostname {
		t.Errorf("%+v", away)
	}
}

// Names have to fit where they are used: in labels, too, a Job's.
func TestNamesFit(t *testing.T) {
	long := strings.Repeat("b", 40)
	m := plan.Measurement{Number: 6400, Repetition: 20, Replicas: 100, Mode: strings.Repeat("m", 30), Phase: plan.Capacity}
	if name := JobName(long, m, 9); len(name) > 52 {
		t.Errorf("%s: %d characters, and a pod's host name needs 11 more", name, len(name))
	}
}
