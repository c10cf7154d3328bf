package gateway

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/observe"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/rollout"
	"qtls.dev/qtls/internal/testcert"
)

var now = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

// sound is a gateway whose every reference resolves, made an hour ago, with
// two pods and nothing published yet.
func sound() inputs {
	certificate := model.Certificate{Secret: "web-ecdsa-p256", Algorithm: "ECDSA-P256", HandshakeSchemes: []uint16{0x0403}, NotAfter: now.Add(time.Hour).Unix(), SerialNumber: "5e"}
	in := inputs{
		Gateway: &v1alpha1.QTLSGateway{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 3, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec: v1alpha1.QTLSGatewaySpec{Replicas: ptr.To[int32](2), PolicyRef: v1alpha1.PolicyReference{Name: "hybrid-v1", Mode: "Prefer"},
				Listeners: []v1alpha1.Listener{{Name: "https", Port: 443, Protocol: v1alpha1.ProtocolHTTPS}}},
		},
		Model: model.Gateway{Namespace: "shop", Name: "web", DrainTimeoutSeconds: 30,
			TLS: model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3", Curves: "X25519MLKEM768", SignatureAlgorithms: "ecdsa_secp256r1_sha256"},
			Ports: []model.Port{{Number: 443, Listeners: []model.Listener{{Name: "https", Protocol: v1alpha1.ProtocolHTTPS,
				Certificates: []model.Certificate{certificate}, Backends: []model.Backend{{Group: "shop:http", Weight: 1}}}}}}},
		Unknown: map[string]error{},
	}
	return in
}

func (in *inputs) add(name string, ready bool, status *dataplane.Status) {
	in.Pods = append(in.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
	in.Observed = append(in.Observed, rollout.Pod{Name: name, Ready: ready, Status: status})
	if status == nil {
		in.Unknown[name] = errors.New("connection refused")
	}
}

// publish makes what is decided now what was published before.
func publish(t *testing.T, in *inputs) plan {
	t.Helper()
	p := mustDecide(t, *in)
	in.Published = &published{Assignment: p.Assignment, Revisions: p.Revisions}
	return p
}

func mustDecide(t *testing.T, in inputs) plan {
	t.Helper()
	p, err := decide(in, now)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func webSecret(t *testing.T, namespace string) *corev1.Secret {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(0x77), Subject: pkix.Name{CommonName: "web"}, DNSNames: []string{"web.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	return testcert.Secret(t, namespace, "web-tls", template, testcert.Key(t, "ECDSA-P256"))
}

func condition(t *testing.T, status v1alpha1.QTLSGatewayStatus, kind string) metav1.Condition {
	t.Helper()
	c := meta.FindStatusCondition(status.Conditions, kind)
	if c == nil {
		t.Fatalf("no condition %s in %+v", kind, status.Conditions)
	}
	if c.ObservedGeneration != 3 {
		t.Errorf("condition %s is of generation %d, want 3", kind, c.ObservedGeneration)
	}
	return *c
}

func TestTheFirstConfigurationIsPublishedAtOnce(t *testing.T) {
	p := mustDecide(t, sound())
	if !p.Published() || p.Assignment.Stable.Generation != 3 || p.Assignment.Candidate != nil {
		t.Fatalf("assignment %+v, want generation 3 stable", p.Assignment)
	}
	if got := p.Secrets(); !slices.Equal(got, []string{"web-ecdsa-p256"}) {
		t.Errorf("secrets %v", got)
	}
	data, err := p.data(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{dataplane.KeyAssignment, dataplane.KeyEndpoints, dataplane.RevisionKey(p.Assignment.Stable.Revision)}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(data)); !slices.Equal(got, want) {
		t.Errorf("keys %v, want %v", got, want)
	}
}

func TestANewConfigurationIsTriedByOnePod(t *testing.T) {
	in := sound()
	first := publish(t, &in)
	in.add("web-1", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.add("web-2", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.Model.TLS.Curves = "MLKEM1024"
	in.Gateway.Generation = 3
	p := publish(t, &in)
	if p.Assignment.Candidate == nil || p.Assignment.CandidatePod != "web-1" || p.Assignment.Stable.Revision != first.Assignment.Stable.Revision {
		t.Fatalf("assignment %+v, want the first stable and web-1 to try the second", p.Assignment)
	}
	if len(p.Revisions) != 2 {
		t.Errorf("%d revisions are published, want both", len(p.Revisions))
	}
	c := condition(t, summarise(in, p, nil, now), v1alpha1.ConditionProgrammed)
	if c.Status != "False" || c.Reason != v1alpha1.ReasonProgressing || !strings.Contains(c.Message, "web-1") {
		t.Errorf("Programmed %+v, want progressing on web-1", c)
	}

	in.Observed[0].Status = &dataplane.Status{Running: first.Assignment.Stable,
		Rejected: &dataplane.Rejection{Target: *p.Assignment.Candidate, Message: "unable to set TLS 1.3 curves list"}}
	refused := publish(t, &in)
	c = condition(t, summarise(in, refused, nil, now), v1alpha1.ConditionProgrammed)
	if c.Reason != v1alpha1.ReasonConfigurationRejected || !strings.Contains(c.Message, "unable to set TLS 1.3 curves list") || !strings.Contains(c.Message, "served on") {
		t.Errorf("Programmed %+v, want HAProxy's message and that the last good one serves on", c)
	}

	in.Observed[0].Status = &dataplane.Status{Running: *p.Assignment.Candidate}
	done := mustDecide(t, in)
	if done.Assignment.Candidate != nil || done.Assignment.Stable != *p.Assignment.Candidate || len(done.Revisions) != 1 {
		t.Errorf("assignment %+v with %d revisions, want the second stable, alone", done.Assignment, len(done.Revisions))
	}
}

// While one pod tries a configuration no other gets it: what keeps that pod is
// told, soon when its agent is silent, and after a minute when it is not ready.
func TestWhatKeepsThePodThatTriesIsTold(t *testing.T) {
	unready := func(d time.Duration) func(*inputs) {
		return func(in *inputs) {
			in.Observed[0].Ready = false
			in.Pods[0].Status = corev1.PodStatus{
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-d))}},
				InitContainerStatuses: []corev1.ContainerStatus{{Name: "agent",
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}}}}}
		}
	}
	silent := func(err error) func(*inputs) {
		return func(in *inputs) {
			in.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}
			in.Observed[0].Status, in.Unknown["web-1"] = nil, err
		}
	}
	for _, tc := range []struct {
		name   string
		happen func(*inputs)
		reason string
		says   string
	}{
		{"nothing", func(*inputs) {}, v1alpha1.ReasonProgressing, "pod web-1 tries the configuration of generation 3 first"},
		{"it waits for a Secret", func(in *inputs) { in.Observed[0].Status.Waiting = `Secret "new" does not exist` }, v1alpha1.ReasonProgressing, `first: Secret "new" does not exist`},
		{"it cannot have a certificate", func(in *inputs) {
			in.Observed[0].Status.Certificates = []dataplane.CertificateStatus{{Secret: "fine", SerialNumber: "1"}, {Secret: "new", Error: "cannot be read: forbidden"}}
		}, v1alpha1.ReasonCertificateRejected, `first, and does not take Secret "new": cannot be read: forbidden; other pods keep the former one`},
		{"it is not ready for a moment", unready(trialPatience - time.Second), v1alpha1.ReasonProgressing, "first"},
		{"it is not ready for long", unready(trialPatience), v1alpha1.ReasonPodsNotReady, "container agent ended with OOMKilled (exit code 137); other pods keep the former one, and another tries this when the pod is deleted"},
		{"its agent had no time to answer", silent(observe.ErrNotYet), v1alpha1.ReasonProgressing, "first"},
		{"its agent does not answer", silent(errors.New("connection refused")), v1alpha1.ReasonAgentUnreachable, "port 8404 (a NetworkPolicy?): connection refused; other pods"},
		{"it has gone", func(in *inputs) { in.Pods, in.Observed = in.Pods[1:], in.Observed[1:] }, v1alpha1.ReasonProgressing, "pod web-1 tries"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := sound()
			first := publish(t, &in)
			in.add("web-1", true, &dataplane.Status{Running: first.Assignment.Stable})
			in.add("web-2", true, &dataplane.Status{Running: first.Assignment.Stable})
			in.Model.TLS.Curves = "MLKEM1024"
			p := publish(t, &in)
			tc.happen(&in)
			if c := condition(t, summarise(in, p, nil, now), v1alpha1.ConditionProgrammed); c.Status != "False" || c.Reason != tc.reason || !strings.Contains(c.Message, tc.says) {
				t.Errorf("Programmed %s %q, want %s saying %q", c.Reason, c.Message, tc.reason, tc.says)
			}
		})
	}
	in := sound()
	first := publish(t, &in)
	in.add("web-1", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.Model.TLS.Curves = "MLKEM1024"
	p := publish(t, &in)
	unready(10 * time.Second)(&in)
	if next := nextLook(in, p, now); next > trialPatience {
		t.Errorf("it is looked at again in %s, want when the minute is over", next)
	}
}

func TestAProblemHoldsWhatIsPublished(t *testing.T) {
	in := sound()
	in.Objects.Secrets = map[string]*corev1.Secret{"web-ecdsa-p256": webSecret(t, "shop")}
	first := publish(t, &in)
	in.add("web-1", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.add("web-2", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.Gateway.Status = summarise(in, first, nil, now)
	in.Problems = []resolve.Problem{{Listener: "https", Condition: v1alpha1.ConditionResolvedRefs, Reason: v1alpha1.ReasonCertificateNotFound, Message: "there is no Secret", Holds: true}}
	in.Model.Ports = nil
	in.Objects.Secrets = nil

	p := mustDecide(t, in)
	if !p.Held || p.Assignment != first.Assignment {
		t.Fatalf("plan %+v, want what was published, held", p)
	}
	status := summarise(in, p, nil, now)
	if c := condition(t, status, v1alpha1.ConditionReady); c.Status != "False" || c.Reason != v1alpha1.ReasonCertificateNotFound {
		t.Errorf("Ready %+v", c)
	}
	says := func(in inputs, want string) {
		t.Helper()
		if c := meta.FindStatusCondition(summarise(in, p, nil, now).Conditions, v1alpha1.ConditionProgrammed); c == nil || c.Reason != v1alpha1.ReasonPending || !strings.Contains(c.Message, want) {
			t.Errorf("Programmed %+v, want %q", c, want)
		}
	}
	says(in, "nothing new is served, of any listener, while a reference or field is wrong (see the other conditions); the configuration of generation 3, as it was published last, is served on")
	changed := in
	changed.Gateway = in.Gateway.DeepCopy()
	changed.Gateway.Generation = 4
	says(changed, "generation 4 is not served, of any listener, while a reference or field is wrong (see the other conditions); generation 3, the last good one, is served on")
	nobody := in
	nobody.Pods, nobody.Observed = nil, nil
	if c := condition(t, summarise(nobody, p, nil, now), v1alpha1.ConditionProgrammed); strings.Contains(c.Message, "served on") || !strings.Contains(c.Message, "no pod is ready") {
		t.Errorf("Programmed %+v: no pod serves anything", c)
	}
	if status.Pods != "2/2" || status.CertificateAlgorithms != "ECDSA-P256" {
		t.Errorf("pods %s, certificates %s: both pods serve on as before", status.Pods, status.CertificateAlgorithms)
	}
}

// The status names the certificates that pods serve, not those of Secrets that pods
// refuse, or of a configuration that is tried, or was when a problem came up.
func TestTheStatusNamesTheCertificatesThatAreServed(t *testing.T) {
	in := sound()
	in.Objects.Secrets = map[string]*corev1.Secret{"web-ecdsa-p256": webSecret(t, "shop")}
	first := publish(t, &in)
	certificate := first.Revisions[first.Assignment.Stable.Revision].Certificates[0]
	pair, ok := stored(in, certificate)
	if !ok {
		t.Fatal("a pod that starts cannot serve the Secret's certificate")
	}
	end := pair.Chain[0].NotAfter
	serves := func(serial string, notAfter time.Time, problem string) *dataplane.Status {
		return &dataplane.Status{Running: first.Assignment.Stable, Certificates: []dataplane.CertificateStatus{
			{Name: certificate.Name, Secret: certificate.Secret, SerialNumber: serial, NotAfter: notAfter.UTC(), Error: problem}}}
	}
	is := func(serial string, notAfter time.Time) v1alpha1.ServedCertificate {
		return v1alpha1.ServedCertificate{SecretName: "web-ecdsa-p256", Algorithm: "ECDSA-P256", SerialNumber: serial, NotAfter: metav1.Unix(notAfter.Unix(), 0)}
	}
	names := func(when string, p plan, want v1alpha1.ServedCertificate) {
		t.Helper()
		in.Gateway.Status = summarise(in, p, nil, now)
		if got := in.Gateway.Status; len(got.Certificates) != 1 || got.Certificates[0] != want || got.CertificateAlgorithms != want.Algorithm {
			t.Errorf("%s: %+v and %s, want %+v", when, got.Certificates, got.CertificateAlgorithms, want)
		}
	}
	in.add("web-1", true, nil)
	in.add("web-2", true, nil)
	names("before an agent has answered", first, is("77", end))
	present, former := serves("77", end, ""), serves("5d", end.Add(-time.Hour), "HAProxy refuses it")
	in.Observed[0].Status, in.Observed[1].Status = present, former
	names("while a pod refuses the renewed one", first, is("5d", end.Add(-time.Hour)))
	in.Observed[0].Status = former
	names("while all refuse it", first, is("5d", end.Add(-time.Hour)))
	if c := condition(t, in.Gateway.Status, v1alpha1.ConditionProgrammed); c.Reason != v1alpha1.ReasonCertificateRejected ||
		c.Message != `pod web-1 serves on the former certificate of Secret "web-ecdsa-p256": HAProxy refuses it; pod web-2 serves on the former certificate of Secret "web-ecdsa-p256": HAProxy refuses it` {
		t.Errorf("Programmed %s %q", c.Reason, c.Message)
	}
	in.Observed[0].Status, in.Observed[1].Status = present, present
	names("when all serve it", first, is("77", end))

	in.Model.Ports = slices.Clone(in.Model.Ports)
	in.Model.Ports[0].Listeners = slices.Clone(in.Model.Ports[0].Listeners)
	in.Model.Ports[0].Listeners[0].Certificates = []model.Certificate{{Secret: "web-ml-dsa-65", Algorithm: "ML-DSA-65", PostQuantum: true, HandshakeSchemes: []uint16{0x0905}, SerialNumber: "60", NotAfter: end.Unix()}}
	served := is("5d", end.Add(time.Hour))
	in.Observed[0].Status, in.Observed[1].Status = serves("5d", end.Add(time.Hour), ""), serves("5d", end.Add(time.Hour), "")
	trial := publish(t, &in)
	names("while a pod tries another", trial, served)
	in.Observed[0].Status.Rejected = &dataplane.Rejection{Target: *trial.Assignment.Candidate, Message: "no"}
	names("after it refused", publish(t, &in), served)

	in.Problems = []resolve.Problem{{Reason: v1alpha1.ReasonCertificateNotFound, Holds: true}}
	in.Objects.Secrets = nil
	held := publish(t, &in)
	if !held.Held {
		t.Fatalf("plan %+v, want it held", held)
	}
	names("while a problem holds it", held, served)
	in.Observed[0].Status, in.Observed[1].Status = nil, nil
	names("while no agent answers", held, served)
	in.Objects.Secrets = map[string]*corev1.Secret{"web-ecdsa-p256": webSecret(t, "shop")}
	if pair, ok = stored(in, certificate); !ok {
		t.Fatal("a pod that starts cannot serve the Secret's certificate")
	}
	names("and its Secret is there", held, is("77", pair.Chain[0].NotAfter))
}

// A gateway with a second listener whose Secret is deleted: pods that run go on
// with both; where none does, and none could start with both, the first is served.
func TestWhatNoPodCanServeIsNotHeld(t *testing.T) {
	missing := []resolve.Problem{{Listener: "other", Condition: v1alpha1.ConditionResolvedRefs, Reason: v1alpha1.ReasonCertificateNotFound, Message: "there is no Secret", Holds: true}}
	for _, tc := range []struct {
		name string
		set  func(in *inputs, first plan)
		held bool
	}{
		{"a pod serves it", func(in *inputs, first plan) { in.add("a", true, &dataplane.Status{Running: first.Assignment.Stable}) }, true},
		{"a pod may serve it", func(in *inputs, _ plan) { in.add("a", false, nil) }, true},
		{"no pod does", func(*inputs, plan) {}, false},
		{"pods wait for the Secret", func(in *inputs, _ plan) {
			in.add("a", false, nil)
			in.Observed[0].Pending = true
		}, false},
		{"the Secret does not have that key any more", func(in *inputs, _ plan) {
			in.Objects.Secrets["other-tls"] = &corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("x")}}
		}, false},
		{"its key is in an HSM now", func(in *inputs, _ plan) {
			web := in.Objects.Secrets["web-ecdsa-p256"]
			in.Objects.Secrets["other-tls"] = &corev1.Secret{Data: map[string][]byte{"tls.crt": web.Data["tls.crt"], "tls.key": keypair.Reference{Pool: "vault", Label: "other"}.PEM()}}
		}, false},
		{"every Secret of it is there", func(in *inputs, _ plan) { in.Objects.Secrets["other-tls"] = in.Objects.Secrets["web-ecdsa-p256"] }, true},
		{"no listener is complete", func(in *inputs, _ plan) { in.Model.Ports = nil }, true},
		{"there is no policy", func(in *inputs, _ plan) {
			in.Problems = append(in.Problems, resolve.Problem{Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonPolicyNotFound, Holds: true, Fatal: true})
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := sound()
			in.Objects.Secrets = map[string]*corev1.Secret{"web-ecdsa-p256": webSecret(t, "shop")}
			complete := in.Model.Ports
			other := complete[0].Listeners[0]
			other.Name, other.Certificates = "other", slices.Clone(other.Certificates)
			other.Certificates[0].Secret = "other-tls"
			in.Model.Ports = append(slices.Clone(complete), model.Port{Number: 8443, Listeners: []model.Listener{other}})
			first := publish(t, &in)
			in.Model.Ports, in.Problems = complete, missing
			tc.set(&in, first)
			p := mustDecide(t, in)
			want := []string{"other-tls", "web-ecdsa-p256"}
			if !tc.held {
				want = want[1:]
			}
			if got := p.Secrets(); p.Held != tc.held || !slices.Equal(got, want) || p.Assignment.Candidate != nil {
				t.Errorf("held %v, with the Secrets %v and the assignment %+v; want held %v, with %v", p.Held, got, p.Assignment, tc.held, want)
			}
		})
	}
}

// What is tried when a problem comes up: stays if it was found good by then, and
// goes otherwise.
func TestAHeldGatewayTriesNothing(t *testing.T) {
	in := sound()
	first := publish(t, &in)
	in.add("web-1", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.Model.TLS.Curves = "MLKEM1024"
	trial := publish(t, &in)
	in.Problems = []resolve.Problem{{Reason: v1alpha1.ReasonCertificateNotFound, Holds: true}}
	if p := mustDecide(t, in); !p.Held || p.Assignment != first.Assignment || len(p.Revisions) != 1 {
		t.Errorf("assignment %+v with %d revisions, want the first alone", p.Assignment, len(p.Revisions))
	}
	in.Observed[0].Status = &dataplane.Status{Running: *trial.Assignment.Candidate}
	if p := mustDecide(t, in); !p.Held || p.Assignment != (dataplane.Assignment{Stable: *trial.Assignment.Candidate}) || len(p.Revisions) != 1 {
		t.Errorf("assignment %+v with %d revisions, want the second alone", p.Assignment, len(p.Revisions))
	}
}

// A Service keeps the ports that pods listen on until the revision with others is
// found good, and longer where it is not.
func TestPortsThatPodsListenOn(t *testing.T) {
	in := sound()
	first := publish(t, &in)
	in.add("web-1", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.add("web-2", true, &dataplane.Status{Running: first.Assignment.Stable})
	ports := func(when string, p plan, want ...int32) {
		t.Helper()
		if got := p.ports(); !slices.Equal(got, want) {
			t.Errorf("%s: ports %v, want %v", when, got, want)
		}
	}
	ports("at first", first, 443)

	held := in
	held.Model.Ports = nil
	held.Problems = []resolve.Problem{{Reason: v1alpha1.ReasonCertificateNotFound, Holds: true}}
	ports("while a problem holds another", mustDecide(t, held), 443)

	in.Model.Ports = slices.Clone(in.Model.Ports)
	in.Model.Ports[0].Number = 8443
	trial := publish(t, &in)
	ports("while a pod tries another", trial, 443, 8443)
	in.Observed[0].Status = &dataplane.Status{Running: first.Assignment.Stable,
		Rejected: &dataplane.Rejection{Target: *trial.Assignment.Candidate, Message: "no"}}
	ports("after it refused", publish(t, &in), 443, 8443)
	in.Observed[0].Status = &dataplane.Status{Running: *trial.Assignment.Candidate}
	ports("after it took it up", mustDecide(t, in), 8443)
}

func TestANewGatewayWaitsAMomentForAllAlgorithms(t *testing.T) {
	in := sound()
	in.Problems = []resolve.Problem{{Listener: "https", Condition: v1alpha1.ConditionResolvedRefs, Reason: v1alpha1.ReasonCertificateNotReady, Holds: true, Message: "not issued yet"}}
	in.Gateway.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
	p := mustDecide(t, in)
	if p.Published() || !p.Waiting {
		t.Fatalf("plan %+v, want nothing yet", p)
	}
	if next := nextLook(in, p, now); next > issuingGrace+time.Second {
		t.Errorf("it is looked at again in %s, want when the moment is over", next)
	}
	in.Gateway.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
	if p := mustDecide(t, in); !p.Published() {
		t.Error("after that it does not serve with what there is")
	}
}

func TestProgrammedSaysWhatIsBetween(t *testing.T) {
	in := sound()
	p := publish(t, &in)
	target := p.Assignment.Stable
	for _, tc := range []struct {
		name   string
		set    func(*inputs)
		apply  error
		reason string
		says   string
		ready  string
	}{
		{"no pods yet", func(*inputs) {}, nil, v1alpha1.ReasonPodsNotReady, "pods are being created", "PodsNotReady"},
		{"replicas is 0", func(in *inputs) { in.Gateway.Spec.Replicas = ptr.To[int32](0) }, nil, v1alpha1.ReasonNoPods, "spec.replicas is 0", "NoPods"},
		{"all run it", func(in *inputs) {
			in.add("a", true, &dataplane.Status{Running: target})
			in.add("b", true, &dataplane.Status{Running: target})
		}, nil, v1alpha1.ReasonProgrammed, "all 2 ready pods run generation 3", "Ready"},
		{"one pod is not ready", func(in *inputs) {
			in.add("a", true, &dataplane.Status{Running: target})
			in.add("b", false, nil)
			in.Pods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "haproxy", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
		}, nil, v1alpha1.ReasonProgrammed, "all 1 ready pods", "PodsNotReady"},
		{"one runs an earlier generation", func(in *inputs) {
			in.add("a", true, &dataplane.Status{Running: target})
			in.add("b", true, &dataplane.Status{Running: dataplane.Target{Revision: "old", Generation: 1}})
		}, nil, v1alpha1.ReasonProgressing, "pod b runs generation 1", "Progressing"},
		{"an agent does not answer", func(in *inputs) {
			in.add("a", true, &dataplane.Status{Running: target})
			in.add("b", true, nil)
		}, nil, v1alpha1.ReasonAgentUnreachable, "pod b: connection refused", "AgentUnreachable"},
		{"an agent had no time to answer", func(in *inputs) {
			in.add("a", true, nil)
			in.Unknown["a"] = observe.ErrNotYet
		}, nil, v1alpha1.ReasonProgressing, "pod a: its agent has not answered yet", "Progressing"},
		{"an agent refuses a new certificate", func(in *inputs) {
			in.add("a", true, &dataplane.Status{Running: target, Certificates: []dataplane.CertificateStatus{{Secret: "web-ecdsa-p256", Error: "the key does not match"}}})
		}, nil, v1alpha1.ReasonCertificateRejected, `Secret "web-ecdsa-p256": the key does not match`, "CertificateRejected"},
		{"an object could not be applied", func(*inputs) {}, errors.New(`Service "web-gateway" exists`), v1alpha1.ReasonNotApplied, `Service "web-gateway" exists`, "NotApplied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := in
			in.Gateway = in.Gateway.DeepCopy()
			in.Pods, in.Observed, in.Unknown = nil, nil, map[string]error{}
			tc.set(&in)
			status := summarise(in, mustDecide(t, in), tc.apply, now)
			c := condition(t, status, v1alpha1.ConditionProgrammed)
			if c.Reason != tc.reason || !strings.Contains(c.Message, tc.says) {
				t.Errorf("Programmed %s %q, want %s saying %q", c.Reason, c.Message, tc.reason, tc.says)
			}
			if r := condition(t, status, v1alpha1.ConditionReady); r.Reason != tc.ready {
				t.Errorf("Ready %s %q, want %s", r.Reason, r.Message, tc.ready)
			}
		})
	}
}

// An operator that has just started, or just become the leader, has asked no agent
// yet: of a gateway that is as it was it says what was said.
func TestAnOperatorThatHasAskedNobodyYetSaysWhatWasSaid(t *testing.T) {
	in := sound()
	p := publish(t, &in)
	runs, secret := &dataplane.Status{Running: p.Assignment.Stable}, "web-ecdsa-p256"
	refuses := &dataplane.Status{Running: p.Assignment.Stable, Certificates: []dataplane.CertificateStatus{{Secret: secret, Error: "the key does not match"}}}
	missing := []resolve.Problem{{Condition: v1alpha1.ConditionResolvedRefs, Reason: v1alpha1.ReasonCertificateNotFound, Holds: true}}
	unheard := func(in *inputs, i int) {
		in.Observed[i].Status, in.Unknown[in.Pods[i].Name] = nil, observe.ErrNotYet
	}
	for _, tc := range []struct {
		name     string
		a, b     *dataplane.Status // of the pods, before
		problems []resolve.Problem
		now      func(*inputs)
		reason   string
		pods     string
	}{
		{"all served it", runs, runs, nil, func(in *inputs) { unheard(in, 0); unheard(in, 1) }, v1alpha1.ReasonProgrammed, "2/2"},
		{"and one has answered", runs, runs, nil, func(in *inputs) { unheard(in, 1) }, v1alpha1.ReasonProgrammed, "2/2"},
		{"one refused a certificate", runs, refuses, nil, func(in *inputs) { unheard(in, 0); unheard(in, 1) }, v1alpha1.ReasonCertificateRejected, "2/2"},
		{"one did not answer", runs, nil, nil, func(in *inputs) { unheard(in, 0); unheard(in, 1) }, v1alpha1.ReasonAgentUnreachable, "1/2"},
		{"a problem held it", runs, runs, missing, func(in *inputs) { unheard(in, 0); unheard(in, 1) }, v1alpha1.ReasonPending, "2/2"},
		{"one has gone since", runs, runs, nil, func(in *inputs) {
			unheard(in, 0)
			in.Pods, in.Observed = in.Pods[:1], in.Observed[:1]
		}, v1alpha1.ReasonProgrammed, "1/2"},
		{"one answers that it is behind", runs, runs, nil, func(in *inputs) {
			unheard(in, 0)
			in.Observed[1].Status = &dataplane.Status{Running: dataplane.Target{Revision: "old", Generation: 1}}
		}, v1alpha1.ReasonProgressing, "1/2"},
		{"the spec has changed", runs, runs, nil, func(in *inputs) {
			unheard(in, 0)
			unheard(in, 1)
			in.Gateway.Generation = 4
		}, v1alpha1.ReasonProgressing, "0/2"},
		{"none was ready", nil, nil, nil, func(in *inputs) { unheard(in, 0); unheard(in, 1) }, v1alpha1.ReasonProgressing, "0/2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := in
			in.Gateway, in.Problems = in.Gateway.DeepCopy(), tc.problems
			in.Pods, in.Observed, in.Unknown = nil, nil, map[string]error{}
			nobody := tc.a == nil && tc.b == nil
			in.add("a", !nobody, tc.a)
			in.add("b", !nobody, tc.b)
			in.Gateway.Status = summarise(in, mustDecide(t, in), nil, now)
			in.Observed[0].Ready, in.Observed[1].Ready = true, true
			tc.now(&in)
			status := summarise(in, mustDecide(t, in), nil, now)
			if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed); c.Reason != tc.reason || status.Pods != tc.pods {
				t.Errorf("%s pods, Programmed %s %q; want %s, %s", status.Pods, c.Reason, c.Message, tc.pods, tc.reason)
			}
		})
	}
}

// What could be published alone, and not beside what comes after it, is refused
// before: else nothing could be published any more, not even endpoints.
func TestAConfigurationThatIsTooLargeIsRefused(t *testing.T) {
	ca := string(webSecret(t, "shop").Data["tls.crt"])
	clients := func(in *inputs, bytes int) {
		in.Model.Ports = slices.Clone(in.Model.Ports)
		in.Model.Ports[0].Listeners = slices.Clone(in.Model.Ports[0].Listeners)
		in.Model.Ports[0].Listeners[0].ClientAuthentication = &model.ClientAuthentication{Required: true, CAs: strings.Repeat(ca, bytes/len(ca))}
	}
	in := sound()
	clients(&in, 400<<10)
	if problems := oversize(in.Model); problems != nil {
		t.Fatalf("400 KiB: %+v", problems)
	}
	first := publish(t, &in)
	in.add("a", true, &dataplane.Status{Running: first.Assignment.Stable})
	in.Model.TLS.Curves = "MLKEM1024"
	data, err := publish(t, &in).data(nil)
	if err != nil {
		t.Fatal(err)
	}
	if size := sizeOf(data); len(in.Published.Revisions) != 2 || size > 900<<10 {
		t.Errorf("two of 400 KiB take %d KiB in %d revisions; a ConfigMap has room for 1024 KiB, and endpoints need some", size>>10, len(in.Published.Revisions))
	}

	clients(&in, 500<<10)
	in.Problems = oversize(in.Model)
	held := mustDecide(t, in)
	status := summarise(in, held, nil, now)
	if c := condition(t, status, v1alpha1.ConditionAccepted); !held.Held || c.Reason != v1alpha1.ReasonInvalid || !strings.Contains(c.Message, "certificates of authorities, and the most is 448 KiB; let the caRefs") {
		t.Errorf("500 KiB: held %v, Accepted %s %q", held.Held, c.Reason, c.Message)
	}
	in.Published = nil
	if p := mustDecide(t, in); p.Published() {
		t.Error("500 KiB are published, where nothing was before")
	}
}

// sizeOf a ConfigMap's data, as the API server counts it.
func sizeOf(data map[string]string) int {
	n := 0
	for key, value := range data {
		n += len(key) + len(value)
	}
	return n
}

func TestALoadBalancerHasAnAddressWhenItHasOne(t *testing.T) {
	in := sound()
	p := publish(t, &in)
	in.add("a", true, &dataplane.Status{Running: p.Assignment.Stable})
	in.add("b", true, &dataplane.Status{Running: p.Assignment.Stable})
	in.Service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web-gateway"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7"}}
	const waits = `Service "web-gateway" has no address of a load balancer yet`
	status := summarise(in, p, nil, now)
	if c := condition(t, status, v1alpha1.ConditionReady); c.Reason != v1alpha1.ReasonReady || !strings.Contains(c.Message, waits) || len(status.Addresses) > 0 {
		t.Errorf("before: addresses %v, Ready %s %q", status.Addresses, c.Reason, c.Message)
	}
	in.Service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}
	status = summarise(in, p, nil, now)
	if c := condition(t, status, v1alpha1.ConditionReady); strings.Contains(c.Message, waits) || len(status.Addresses) != 1 || status.Addresses[0].Value != "192.0.2.7" {
		t.Errorf("after: addresses %v, Ready %s %q", status.Addresses, c.Reason, c.Message)
	}
	in.Service.Spec.Type, in.Service.Status = corev1.ServiceTypeClusterIP, corev1.ServiceStatus{}
	status = summarise(in, p, nil, now)
	if c := condition(t, status, v1alpha1.ConditionReady); strings.Contains(c.Message, waits) || len(status.Addresses) != 1 || status.Addresses[0].Value != "10.96.0.7" {
		t.Errorf("of the cluster: addresses %v, Ready %s %q", status.Addresses, c.Reason, c.Message)
	}
}

func TestATransitionTimeMovesOnlyWithTheStatus(t *testing.T) {
	in := sound()
	p := publish(t, &in)
	in.Gateway.Status = summarise(in, p, nil, now)
	later := summarise(in, p, nil, now.Add(time.Hour))
	if !equalStatus(in.Gateway.Status, later) {
		t.Error("nothing changed, and yet the status is another: it would be written for ever")
	}
}
