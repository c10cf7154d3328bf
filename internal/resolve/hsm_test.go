package resolve

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/model"
)

// vaultPool has two members; of the one that is named, gateways have no
// credentials.
func vaultPool(t *testing.T, without string) *v1alpha1.HSMPool {
	t.Helper()
	member := func(name string) map[string]any {
		remote := map[string]any{"address": name + ".hsm.example.com:7443", "serverName": "hsm.example.com",
			"tlsSecretRef": map[string]string{"name": "operator"}, "gatewayTLSSecretRef": map[string]string{"name": "clients-" + name}}
		if name == without {
			delete(remote, "gatewayTLSSecretRef")
		}
		return map[string]any{"name": name, "remote": remote}
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]string{"namespace": "shop", "name": "vault"},
		"spec": map[string]any{"timeout": "2s", "members": []any{member("a"), member("b")}}})
	if err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.HSMPool{}
	if err := json.Unmarshal(text, pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// inVault has the fixture's ML-DSA-65 key lie in the pool, and the gateway name
// it.
func (f *fixture) inVault(t *testing.T) *fixture {
	t.Helper()
	f.objects.Secrets["shop-ml-dsa-65"].Data[corev1.TLSPrivateKeyKey] = keypair.Reference{Pool: "vault", Label: "shop-ml-dsa-65-1"}.PEM()
	f.objects.HSMPools = map[string]*v1alpha1.HSMPool{"vault": vaultPool(t, "")}
	f.gateway.Spec.HSMRef = &v1alpha1.HSMPoolReference{Name: "vault"}
	return f
}

func TestKeysMayLieInAnHSM(t *testing.T) {
	f := newFixture(t).inVault(t)
	m, problems := Resolve(f.gateway, f.objects, now)
	if len(problems) > 0 {
		t.Fatalf("problems: %+v", problems)
	}
	certificates := m.Ports[0].Listeners[0].Certificates
	if len(certificates) != 2 || certificates[0].HSMPool != "vault" || certificates[1].HSMPool != "" {
		t.Errorf("certificates: %+v", certificates)
	}
	want := []model.HSMMember{
		{Name: "a", Address: "a.hsm.example.com:7443", ServerName: "hsm.example.com", Secret: "clients-a", Sessions: 16},
		{Name: "b", Address: "b.hsm.example.com:7443", ServerName: "hsm.example.com", Secret: "clients-b", Sessions: 16}}
	if m.HSM == nil || m.HSM.Pool != "vault" || m.HSM.Timeout != 2*time.Second || !slices.Equal(m.HSM.Members, want) {
		t.Errorf("HSM: %+v", m.HSM)
	}
	f.objects.HSMPools["vault"].Spec.Order = v1alpha1.HSMSpread
	if spread, problems := Resolve(f.gateway, f.objects, now); m.HSM.Spread || !spread.HSM.Spread || len(problems) > 0 {
		t.Errorf("order Ordered: %+v; Spread: %+v, problems %+v", m.HSM, spread.HSM, problems)
	}
}

// Without such a key the configuration is what it was before the gateway named a
// pool.
func TestAPoolThatHasNoKeyOfTheGatewayIsNotUsed(t *testing.T) {
	f := newFixture(t).inVault(t)
	f.objects.Secrets["shop-ml-dsa-65"] = tlsSecret(t, "shop-ml-dsa-65", "ML-DSA-65", "shop.example.com")
	if m, problems := Resolve(f.gateway, f.objects, now); m.HSM != nil || len(problems) > 0 {
		t.Errorf("HSM: %+v, problems %+v", m.HSM, problems)
	}
}

func TestAPoolThatCannotBeUsed(t *testing.T) {
	const listener = "listeners[https].certificateRefs: Secret \"shop-ml-dsa-65\": "
	for name, c := range map[string]struct {
		change    func(*fixture)
		listener  string // what its problem says; it has the other certificate all the same
		condition string
		reason    string
		gateway   string // what the problem of the gateway says
	}{
		"no hsmRef": {func(f *fixture) { f.gateway.Spec.HSMRef = nil },
			`its private key lies in HSMPool "vault", and spec.hsmRef is not set; set spec.hsmRef.name to "vault"`, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalid, ""},
		"another pool": {func(f *fixture) {
			f.gateway.Spec.HSMRef.Name = "other"
			f.objects.HSMPools["other"] = vaultPool(t, "")
		}, `spec.hsmRef names "other"`, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalid, ""},
		"no pool": {func(f *fixture) { f.objects.HSMPools = nil },
			"which cannot be used", v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonHSMPoolNotFound, `spec.hsmRef: there is no HSMPool "vault" in namespace "shop"`},
		"no credentials": {func(f *fixture) { f.objects.HSMPools["vault"] = vaultPool(t, "b") },
			"which cannot be used", v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonSecretNotFound, "spec.members[b].remote.gatewayTLSSecretRef is not set"},
		"a member that is nowhere": {func(f *fixture) { f.objects.HSMPools["vault"].Spec.Members[1].Remote.Address = "b.hsm:74433" },
			"which cannot be used", v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonInvalid, `HSMPool "vault": spec.members[b].remote.address: "b.hsm:74433" is not`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t).inVault(t)
			c.change(f)
			m, problems := Resolve(f.gateway, f.objects, now)
			var listeners, gateways []Problem
			for _, p := range problems {
				if !p.Holds {
					t.Errorf("%+v does not hold the configuration", p)
				}
				if p.Listener != "" {
					listeners = append(listeners, p)
				} else {
					gateways = append(gateways, p)
				}
			}
			if len(listeners) != 1 || listeners[0].Condition != c.condition || listeners[0].Reason != c.reason ||
				!strings.HasPrefix(listeners[0].Message, listener) || !strings.Contains(listeners[0].Message, c.listener) {
				t.Errorf("problems of the listener: %+v", listeners)
			}
			if (len(gateways) == 1) != (c.gateway != "") || c.gateway != "" && !strings.Contains(gateways[0].Message, c.gateway) {
				t.Errorf("problems of the gateway: %+v", gateways)
			}
			// A new gateway serves what is left.
			if l := m.Ports[0].Listeners[0]; len(l.Certificates) != 1 || l.Certificates[0].Algorithm != "ECDSA-P256" || m.HSM != nil {
				t.Errorf("model: %+v, %+v", l.Certificates, m.HSM)
			}
		})
	}
}

// The module of gateways refuses all keys for one that it cannot have: each of
// these is left out.
func TestReferencesThatTheModuleWouldRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Secret)
		says   string
	}{
		"a label that begins a comment": {func(s *corev1.Secret) {
			s.Data[corev1.TLSPrivateKeyKey] = keypair.Reference{Pool: "vault", Label: "#web"}.PEM()
		}, `names the label "#web"`},
		"an algorithm that no HSM has": {func(s *corev1.Secret) {
			s.Data[corev1.TLSCertKey] = providerSecret(t, "haetae2").Data[corev1.TLSCertKey]
		}, `pool "vault" cannot have the key of a certificate of haetae2`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t).inVault(t)
			c.change(f.objects.Secrets["shop-ml-dsa-65"])
			m, problems := Resolve(f.gateway, f.objects, now)
			if len(problems) != 1 || problems[0].Listener != "https" || problems[0].Reason != v1alpha1.ReasonCertificateInvalid || !problems[0].Holds ||
				!strings.HasPrefix(problems[0].Message, `listeners[https].certificateRefs: Secret "shop-ml-dsa-65": `) || !strings.Contains(problems[0].Message, c.says) {
				t.Errorf("problems: %+v", problems)
			}
			if l := m.Ports[0].Listeners[0]; len(l.Certificates) != 1 || l.Certificates[0].Algorithm != "ECDSA-P256" || m.HSM != nil {
				t.Errorf("model: %+v, %+v", l.Certificates, m.HSM)
			}
		})
	}
}
