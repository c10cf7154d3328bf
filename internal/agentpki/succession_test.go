package agentpki

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"qtls.dev/qtls/internal/keypair"
)

// succeed takes a succession to a moment, by way of what its Secret holds.
func succeed(t *testing.T, data map[string][]byte, now time.Time) (*Succession, map[string][]byte, bool) {
	t.Helper()
	s, changed, reason, err := Succeed(data, now)
	if err != nil || reason != nil {
		t.Fatal(err, reason)
	}
	if changed {
		if data, err = s.Data(); err != nil {
			t.Fatal(err)
		}
	}
	return s, data, changed
}

func keep(t *testing.T, s *Succession, data map[string][]byte, now time.Time) map[string][]byte {
	t.Helper()
	data, err := s.Keep(data, "gateways", x509.ExtKeyUsageClientAuth, now)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// accepts says whether a peer with one Secret accepts the certificate of
// another, for the use that it is for.
func accepts(t *testing.T, peer, shown map[string][]byte, now time.Time) bool {
	t.Helper()
	chain, err := keypair.ParseCertificates(shown["tls.crt"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(peer["ca.crt"])
	_, err = chain[0].Verify(x509.VerifyOptions{DNSName: "gateways", Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

// Three years, ten hours at a time: a peer that sees its Secret 20 hours late and
// one that sees it at once accept each other all the time.
func TestPeersUnderstandEachOtherWhileAuthoritiesChange(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s, data, _ := succeed(t, nil, start)
	present := keep(t, s, nil, start)
	var late []map[string][]byte
	authorities, certificates := 1, 1
	for now := start; now.Before(start.Add(3 * 365 * 24 * time.Hour)); now = now.Add(10 * time.Hour) {
		var changed bool
		if s, data, changed = succeed(t, data, now); changed {
			authorities++
		}
		before := present
		if present = keep(t, s, present, now); !bytes.Equal(before["tls.crt"], present["tls.crt"]) {
			certificates++
		}
		late = append(late, present)
		if len(late) > 3 {
			late = late[1:]
		}
		if !accepts(t, late[0], present, now) || !accepts(t, present, late[0], now) {
			t.Fatalf("after %v they do not accept each other", now.Sub(start))
		}
	}
	// A year each, in two steps: known, and then signing; certificates 20 days.
	if authorities != 1+2*2 || certificates < 50 || certificates > 60 {
		t.Errorf("%d changes of the authority and %d certificates in three years", authorities, certificates)
	}
}

func TestASuccessionThatDoesNotParseBeginsAnew(t *testing.T) {
	now := time.Now()
	s, changed, reason, err := Succeed(map[string][]byte{"tls.crt": []byte("x")}, now)
	if err != nil || reason == nil || !changed {
		t.Fatalf("changed %t, reason %v, %v", changed, reason, err)
	}
	if shown := keep(t, s, nil, now); !accepts(t, shown, shown, now) {
		t.Error("what it issues is not of its bundle")
	}
}

func TestACertificateIsKeptForItsName(t *testing.T) {
	now := time.Now()
	s, _, _ := succeed(t, nil, now)
	first := keep(t, s, nil, now)
	if again := keep(t, s, first, now); !bytes.Equal(first["tls.key"], again["tls.key"]) {
		t.Error("another certificate for the same name")
	}
	other, err := s.Keep(first, "operator", x509.ExtKeyUsageClientAuth, now)
	if err != nil || bytes.Equal(first["tls.key"], other["tls.key"]) {
		t.Errorf("the certificate of another name is kept (%v)", err)
	}
}
