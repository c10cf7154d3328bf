package resolve

import (
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/ticketstore"
)

func ticketsOf(t *testing.T, change func(*fixture)) *model.Tickets {
	t.Helper()
	f := newFixture(t)
	change(f)
	m, problems := Resolve(f.gateway, f.objects, now)
	if len(problems) > 0 {
		t.Fatalf("%+v", problems)
	}
	return m.Tickets
}

func asIs(*fixture) {}

func strictly(f *fixture) { f.gateway.Spec.PolicyRef.Mode = v1alpha1.PolicyModeRequire }

func TestSessionsAreResumedUnlessTheyAreNotTo(t *testing.T) {
	for _, c := range []struct {
		name               string
		change             func(*fixture)
		lifetime, rotation int // 0: no tickets
	}{
		{"by default", asIs, 7200, 7200},
		{"for a time", func(f *fixture) {
			f.gateway.Spec.SessionResumption.TicketLifetime = &metav1.Duration{Duration: time.Minute}
		}, 60, 60},
		{"for a time, under keys that last longer", func(f *fixture) {
			s := &f.gateway.Spec.SessionResumption
			s.TicketLifetime, s.RotationPeriod = &metav1.Duration{Duration: time.Minute}, &metav1.Duration{Duration: time.Hour}
		}, 60, 3600},
		{"disabled", func(f *fixture) { f.gateway.Spec.SessionResumption.Mode = v1alpha1.SessionResumptionDisabled }, 0, 0},
		{"nothing is terminated", func(f *fixture) {
			l := &f.gateway.Spec.Listeners[0]
			l.Protocol, l.CertificateRefs = v1alpha1.ProtocolTLSPassthrough, nil
		}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ticketsOf(t, c.change)
			if c.lifetime == 0 {
				if got != nil {
					t.Errorf("%+v, want none", got)
				}
				return
			}
			if got == nil || got.LifetimeSeconds != c.lifetime || got.RotationSeconds != c.rotation {
				t.Errorf("%+v, want %d and %d s", got, c.lifetime, c.rotation)
			}
		})
	}
}

func TestWhatSharesARing(t *testing.T) {
	own := ticketsOf(t, asIs).Ring
	for _, c := range []struct {
		name   string
		change func(*fixture)
		same   bool
	}{
		{"the same gateway", asIs, true},
		{"with another certificate and host name", func(f *fixture) {
			f.gateway.Spec.Listeners[0].CertificateRefs = []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "shop-ecdsa-p256"}}
			f.gateway.Spec.Listeners[0].Hostnames = nil
		}, true},
		{"with another implementation", func(f *fixture) { f.gateway.Spec.PostQuantumImplementation = v1alpha1.ImplementationVectorized }, true},
		{"under a tightened policy", strictly, false},
		{"another gateway", func(f *fixture) { f.gateway.Name = "blue" }, false},
		{"another namespace", func(f *fixture) { f.gateway.Namespace = "bank" }, false},
		{"a shared ring", func(f *fixture) { f.gateway.Spec.SessionResumption.Ring = "web" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ticketsOf(t, c.change).Ring; (got == own) != c.same {
				t.Errorf("ring %s, own %s, want the same: %v", got, own, c.same)
			}
		})
	}
	ring := func(gateway string, changes ...func(*fixture)) string {
		return ticketsOf(t, func(f *fixture) {
			f.gateway.Name, f.gateway.Spec.SessionResumption.Ring = gateway, "blue-green"
			for _, change := range changes {
				change(f)
			}
		}).Ring
	}
	if ring("blue") != ring("green") {
		t.Error("two gateways that name a ring do not share it")
	}
	if ring("blue") == ring("green", strictly) {
		t.Error("two gateways of different policies share a ring")
	}
}

func externalFixture(t *testing.T) *fixture {
	f := newFixture(t)
	f.gateway.Spec.SessionResumption.Store = v1alpha1.TicketStore{Type: v1alpha1.TicketStoreExternal, External: &v1alpha1.ExternalStore{
		Addresses: []v1alpha1.StoreAddress{"redis.example:6379"}, KeyPrefix: "qtls:",
		CARefs:         []v1alpha1.CAReference{{Kind: v1alpha1.CAKindSecret, Name: "redis-ca", Key: "ca.crt"}},
		CredentialsRef: v1alpha1.SecretReference{Name: "writer"}, AgentCredentialsRef: v1alpha1.SecretReference{Name: "reader"},
	}}
	basic := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"qtls.dev/ticket-store": "true"}},
			Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"username": []byte(name), "password": []byte("secret of " + name)}}
	}
	f.objects.Secrets["writer"], f.objects.Secrets["reader"] = basic("writer"), basic("reader")
	f.objects.Secrets["redis-ca"] = &corev1.Secret{Data: map[string][]byte{"ca.crt": f.objects.Secrets["shop-ecdsa-p256"].Data["tls.crt"]}}
	return f
}

func TestAnExternalStoreIsReachedByTwo(t *testing.T) {
	f := externalFixture(t)
	s, problem := ExternalStore(f.gateway, f.objects)
	if problem != nil {
		t.Fatal(problem)
	}
	if s.Operator.Username != "writer" || s.Operator.Password != "secret of writer" || s.Agent.Username != "reader" || s.Agent.Password != "secret of reader" {
		t.Errorf("operator %q, agents %q", s.Operator.Username, s.Agent.Username)
	}
	if s.Agent.Mode != ticketstore.Members || !reflect.DeepEqual(s.Agent.Addresses, []string{"redis.example:6379"}) || len(s.Agent.CA) == 0 || s.Agent.Prefix != "qtls:" {
		t.Errorf("%+v", s.Agent)
	}
	refs := ReferencesOf(f.gateway)
	for _, name := range []string{"writer", "reader", "redis-ca"} {
		if !strings.Contains(strings.Join(refs.Secrets, " "), name) {
			t.Errorf("a change of Secret %s is not noticed: %v", name, refs.Secrets)
		}
	}
	f.gateway.Spec.SessionResumption.Store.External.SentinelMaster = "tickets"
	if s, _ := ExternalStore(f.gateway, f.objects); s.Agent.Mode != ticketstore.Sentinel || s.Agent.Master != "tickets" {
		t.Errorf("with Sentinels: %+v", s.Agent.Mode)
	}
	f.gateway.Spec.SessionResumption.Store.External.SentinelMaster, f.gateway.Spec.SessionResumption.Store.External.Cluster = "", true
	if s, _ := ExternalStore(f.gateway, f.objects); s.Agent.Mode != ticketstore.Cluster {
		t.Errorf("a cluster: %+v", s.Agent.Mode)
	}
}

func TestEachFaultOfAnExternalStoreIsNamedWithItsRemedy(t *testing.T) {
	const field = "spec.sessionResumption.store.external"
	for _, c := range []struct {
		name  string
		fault func(*fixture)
		says  string
	}{
		{"no Secret to write with", func(f *fixture) { delete(f.objects.Secrets, "writer") },
			field + `.credentialsRef: there is no Secret "writer" in namespace "shop"; create it (type kubernetes.io/basic-auth, label qtls.dev/ticket-store=true) or name another`},
		{"no Secret to read with", func(f *fixture) { delete(f.objects.Secrets, "reader") }, field + `.agentCredentialsRef: there is no Secret "reader"`},
		{"another's password", func(f *fixture) { f.objects.Secrets["writer"].Labels = nil },
			field + `.credentialsRef: Secret "writer" does not have label qtls.dev/ticket-store=true, without which no password is sent to a store; label it if its password is for this one, or name another`},
		{"a mark that takes the permission back", func(f *fixture) { f.objects.Secrets["reader"].Labels["qtls.dev/ticket-store"] = "false" },
			field + `.agentCredentialsRef: Secret "reader" does not have label qtls.dev/ticket-store=true`},
		{"a Secret of another type", func(f *fixture) { f.objects.Secrets["reader"].Type = corev1.SecretTypeOpaque },
			field + `.agentCredentialsRef: Secret "reader" is not of type kubernetes.io/basic-auth, without which no password is sent to a store; if its password is for this one, make it anew with that type and label qtls.dev/ticket-store=true`},
		{"no password", func(f *fixture) { delete(f.objects.Secrets["reader"].Data, "password") },
			field + `.agentCredentialsRef: Secret "reader" has no key "password"; put the password there, and the user's name in "username"`},
		{"no CA", func(f *fixture) { delete(f.objects.Secrets, "redis-ca") },
			field + `.caRefs[0]: there is no Secret "redis-ca" with key "ca.crt" in namespace "shop"; create it or name another`},
		{"a CA that is none", func(f *fixture) { f.objects.Secrets["redis-ca"].Data["ca.crt"] = []byte("none") }, field + `.caRefs[0]: Secret "redis-ca", key "ca.crt": `},
		{"nothing", func(f *fixture) { f.gateway.Spec.SessionResumption.Store.External = nil }, field + ": needed with type External"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := externalFixture(t)
			c.fault(f)
			s, problem := ExternalStore(f.gateway, f.objects)
			if s != nil || problem == nil || !strings.HasPrefix(problem.Message, c.says) || problem.Reason != v1alpha1.ReasonStoreInvalid ||
				problem.Condition != v1alpha1.ConditionSessionResumption || problem.Holds || problem.Fatal {
				t.Errorf("%+v; want %q", problem, c.says)
			}
			if problem != nil && strings.Contains(problem.Message, "secret of") {
				t.Error("a password is in the message")
			}
		})
	}
}
