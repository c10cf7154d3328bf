package redisoperator

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
)

var (
	names = []string{"store.shop.svc", "*.store-headless.shop.svc"}
	now   = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
)

func ensure(t *testing.T, data map[string][]byte, now time.Time) (*Credentials, map[string][]byte, error) {
	t.Helper()
	c, reason, err := Ensure(data, names, now)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := c.Data()
	if err != nil {
		t.Fatal(err)
	}
	return c, kept, reason
}

func TestCredentialsStayAsTheyAre(t *testing.T) {
	_, first, reason := ensure(t, nil, now)
	if reason == nil {
		t.Error("all is new, and there is no reason why")
	}
	if want := []string{"agent-password", "ca.crt", "ca.key", "default-password", "operator-password", "tls.crt", "tls.key"}; !slices.Equal(slices.Sorted(maps.Keys(first)), want) {
		t.Errorf("kept: %v", slices.Sorted(maps.Keys(first)))
	}
	if _, second, reason := ensure(t, first, now.Add(24*time.Hour)); reason != nil || cmp.Diff(first, second) != "" {
		t.Errorf("a day later they are others, because %v", reason)
	}
	// A renewed certificate leaves the passwords, so that nobody is cut off.
	if _, later, _ := ensure(t, first, now.Add(300*24*time.Hour)); bytes.Equal(later["tls.crt"], first["tls.crt"]) || !bytes.Equal(later["default-password"], first["default-password"]) ||
		!bytes.Equal(later["agent-password"], first["agent-password"]) || !bytes.Equal(later["ca.crt"], first["ca.crt"]) {
		t.Error("near the end of the certificate: want another, and the rest as it was")
	}
	for _, unsound := range []string{"", "hunter2", "%"} {
		data := maps.Clone(first)
		data["default-password"] = []byte(unsound)
		_, mended, reason := ensure(t, data, now)
		if reason == nil || strings.Contains(reason.Error(), "hunter2") || string(mended["default-password"]) == unsound || !bytes.Equal(mended["tls.crt"], first["tls.crt"]) {
			t.Errorf("password %q: reason %v", unsound, reason)
		}
	}
}

func TestWhatServersAreGiven(t *testing.T) {
	c, kept, _ := ensure(t, nil, now)
	data, err := c.ServerData()
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"ca.crt", "password", "tls.crt", "tls.key", "user.acl"}; !slices.Equal(slices.Sorted(maps.Keys(data)), want) {
		t.Fatalf("given: %v", slices.Sorted(maps.Keys(data)))
	}
	users := string(data["user.acl"])
	want := regexp.MustCompile(`^user default reset on #[0-9a-f]{64} ~\* &\* \+@all
user operator reset on #[0-9a-f]{64} ~qtls:\* &qtls:\* [-+|a-z ]*\+set [-+|a-z ]*\+cluster\|slots
user agent reset on #[0-9a-f]{64} %R~qtls:\* &qtls:\* [-+|a-z ]*\+cluster\|slots
$`)
	if !want.MatchString(users) {
		t.Errorf("users:\n%s", users)
	}
	if bytes.Equal(data["password"], kept["operator-password"]) || bytes.Equal(data["password"], kept["agent-password"]) || len(data["password"]) < 40 {
		t.Error("the default user's password is another's, or short")
	}
	block, _ := pem.Decode(data["tls.crt"])
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data["ca.crt"])
	// The probes, the replicas and the Redis Operator present it as clients too.
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}, DNSName: "store-0.store-headless.shop.svc"}); err != nil {
			t.Errorf("usage %v: %v", usage, err)
		}
	}
}

func TestConnectionsKnowServersByOneName(t *testing.T) {
	c, _, _ := ensure(t, nil, now)
	got := c.Connection(embedded.Agent, Location{Mode: ticketstore.Sentinel, Address: "sentinels:26379", Master: "mymaster"})
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if got.Mode != ticketstore.Sentinel || !slices.Equal(got.Addresses, []string{"sentinels:26379"}) || got.Master != "mymaster" || got.Username != "agent" ||
		got.ServerName != "store.shop.svc" || got.RequireHybrid || got.SentinelPassword != "" || got.Prefix != "qtls:" {
		got.Password = ""
		t.Errorf("connection %+v", got)
	}
}
