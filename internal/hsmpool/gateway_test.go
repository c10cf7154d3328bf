package hsmpool

import (
	"fmt"
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
	few := *remote
	few.Sessions = 5
	pool.Spec.Members = []v1alpha1.HSMMember{{Name: "card", Remote: remote}, {Name: "few", Remote: &few}, {Name: "soft", SoftToken: &v1alpha1.SoftToken{}}, {Name: "luna", Daemon: &v1alpha1.HSMDaemon{HSMToken: v1alpha1.HSMToken{Sessions: 40}}}}
	got, err := GatewayMembers(pool)
	want := []GatewayMember{
		{Name: "card", Address: "hsm.example.com:7443", ServerName: "hsm.example.com", Secret: "hsm-gateways", Sessions: 16},
		{Name: "few", Address: "hsm.example.com:7443", ServerName: "hsm.example.com", Secret: "hsm-gateways", Sessions: 5},
		{Name: "soft", Address: "dev-soft-hsmd.shop.svc:7443", ServerName: "dev-soft-hsmd.shop.svc", Secret: "dev-hsm-gateways", Sessions: 16},
		{Name: "luna", Address: "dev-luna-hsmd.shop.svc:7443", ServerName: "dev-luna-hsmd.shop.svc", Secret: "dev-hsm-gateways", Sessions: 40},
	}
	if err != nil || !slices.Equal(got.Members, want) || got.Timeout.Seconds() != 5 || got.Spread {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	pool.Spec.Order = v1alpha1.HSMSpread
	if got, err := GatewayMembers(pool); err != nil || !got.Spread {
		t.Errorf("order Spread: %+v, %v", got, err)
	}

	remote.GatewayTLSSecretRef = nil
	_, err = GatewayMembers(pool)
	if p, ok := conditions.AsProblem(err); !ok || p.Reason != v1alpha1.ReasonSecretNotFound || !strings.Contains(p.Message, `HSMPool "dev": spec.members[card].remote.gatewayTLSSecretRef is not set`) {
		t.Errorf("without a Secret for gateways: %v", err)
	}
}

// The module of gateways refuses its whole configuration for one value that it
// cannot use.
func TestWhereNoMemberCanBe(t *testing.T) {
	members := func(address, serverName string) error {
		pool := &v1alpha1.HSMPool{}
		pool.Namespace, pool.Name = "shop", "dev"
		pool.Spec.Members = []v1alpha1.HSMMember{{Name: "card", Remote: &v1alpha1.RemoteHSM{Address: v1alpha1.StoreAddress(address),
			ServerName: v1alpha1.Hostname(serverName), GatewayTLSSecretRef: &v1alpha1.SecretReference{Name: "hsm-gateways"}}}}
		_, err := GatewayMembers(pool)
		return err
	}
	for _, address := range []string{"hsm:1", "hsm.example.com:65535", "1.hsm-2.3a:7443", "192.0.2.1:7443", "[2001:db8::1]:7443", strings.Repeat("a", 63) + ".b:7443"} {
		for _, serverName := range []string{"", "hsm.example.com", "192.0.2.1"} {
			if err := members(address, serverName); err != nil {
				t.Errorf("%s, server name %q: %v", address, serverName, err)
			}
		}
	}
	refused := func(field, value, says string, err error) {
		t.Helper()
		want := fmt.Sprintf("HSMPool \"dev\": spec.members[card].remote.%s: %q is not %s", field, value, says)
		if p, ok := conditions.AsProblem(err); !ok || p.Reason != v1alpha1.ReasonInvalid || !strings.HasPrefix(p.Message, want) {
			t.Errorf("%s %q: %v\nwant %s", field, value, err, want)
		}
	}
	for _, address := range []string{"hsm:0", "hsm:65536", "hsm:74433", "hsm:-1", "hsm:+1", "hsm:"} {
		refused("address", address, "host:port with a port from 1 to 65535", members(address, ""))
	}
	names := []string{"a..b", "a-.b", "-a", "a.", ".a", "a.b-", "hsm.example.1", "1.2.3", "192.0.2.256", "7", "a." + strings.Repeat("7", 30), "a_b", strings.Repeat("a", 64), strings.Repeat("a.", 126) + "bc"}
	for _, name := range names {
		refused("address", name+":7443", "host:port with", members(name+":7443", ""))
		refused("serverName", name, "a DNS name or an IP address", members("hsm:7443", name))
	}
	for _, address := range []string{"[:::1]:7443", "[::1]", "[::1%eth0]:7443", "[192.0.2.1]:7443", "[hsm]:7443", "2001:db8::1:7443", "hsm", ":7443", "a:b:7443"} {
		refused("address", address, "host:port with", members(address, ""))
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
