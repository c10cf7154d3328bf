package hsmpool

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

func TestHowGatewaysReachMembers(t *testing.T) {
	pool := &v1alpha1.HSMPool{}
	pool.Namespace, pool.Name = "shop", "dev"
	remote := &v1alpha1.RemoteHSM{Address: "hsm.example.com:7443", GatewayTLSSecretRef: &v1alpha1.SecretReference{Name: "hsm-gateways"}}
	pool.Spec.Members = []v1alpha1.HSMMember{{Name: "card", Remote: remote}, {Name: "soft", SoftToken: &v1alpha1.SoftToken{}}, {Name: "luna", Daemon: &v1alpha1.HSMDaemon{}}}
	got, err := GatewayMembers(pool)
	want := []GatewayMember{
		{Name: "card", Address: "hsm.example.com:7443", ServerName: "hsm.example.com", Secret: "hsm-gateways"},
		{Name: "soft", Address: "dev-soft-hsmd.shop.svc:7443", ServerName: "dev-soft-hsmd.shop.svc", Secret: "dev-hsm-gateways"},
		{Name: "luna", Address: "dev-luna-hsmd.shop.svc:7443", ServerName: "dev-luna-hsmd.shop.svc", Secret: "dev-hsm-gateways"},
	}
	if err != nil || !slices.Equal(got.Members, want) || got.Timeout.Seconds() != 5 {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}

	remote.GatewayTLSSecretRef = nil
	_, err = GatewayMembers(pool)
	if p, ok := conditions.AsProblem(err); !ok || p.Reason != v1alpha1.ReasonSecretNotFound || !strings.Contains(p.Message, `HSMPool "dev": spec.members[card].remote.gatewayTLSSecretRef is not set`) {
		t.Errorf("without a Secret for gateways: %v", err)
	}
}

// The names of a Service and of a StatefulSet's pods are DNS labels.
func TestNamesOfDaemonsAreWithinTheirLimits(t *testing.T) {
	seen := map[string]bool{}
	for _, pool := range []string{"p", strings.Repeat("p", 40), strings.Repeat("p", 39) + "q"} {
		for _, member := range []string{"m", strings.Repeat("m", 20), strings.Repeat("m", 19) + "n"} {
			name := DaemonName(pool, member)
			if problems := validation.IsDNS1035Label(name); len(problems) > 0 || len(name) > 52 || seen[name] {
				t.Errorf("%s and %s make %q (%d characters, seen before: %t): %v", pool, member, name, len(name), seen[name], problems)
			}
			seen[name] = true
		}
	}
}
