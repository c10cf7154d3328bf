package hsm_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/pki"
)

// The contract, with the daemon and a real token.
func TestHSMD(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	address := hsmtest.Daemon(t, a, fmt.Sprintf(`[client %s]
keys = test-*
may = status, find, sign, generate, retire
[client web-gateway]
keys = test-1
may = status, sign
`, hsmtest.ClientName))
	c := client(t, a, address)
	ctx := patient(t)
	algorithms := held
	if strings.Contains(os.Getenv("QTLS_HSM_MODULE"), "softhsm") {
		algorithms = held[3:] // it has no ML-DSA
	}
	var status hsm.Status
	for status.State != v1alpha1.HSMMemberUp {
		var err error
		if status, err = c.Status(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if status.Token != "gw" {
		t.Errorf("status %+v", status)
	}
	for n, algorithm := range algorithms {
		key := hsm.Key{Label: fmt.Sprintf("test-%d", n), ID: []byte{byte(n)}}
		made, err := c.Generate(ctx, algorithm, key)
		if err != nil {
			t.Errorf("%s: %v", algorithm, err)
			continue
		}
		if !made.Sensitive || made.Extractable || !made.Local {
			t.Errorf("%s: %+v", algorithm, made)
		}
		signer, err := hsm.NewSigner(ctx, hsm.Key{Label: key.Label}, c)
		if err != nil {
			t.Errorf("%s: %v", algorithm, err)
			continue
		}
		request, err := pki.NewRequest(signer, pki.Names{DNSNames: []string{"www.example.com"}})
		if err == nil {
			_, err = pki.ParseRequest(request)
		}
		if err != nil {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
	if after, err := c.Status(ctx); err != nil || after.Signatures < int64(len(algorithms)) {
		t.Errorf("status %+v, %v; want %d signatures", after, err, len(algorithms))
	}

	// Refusals.
	_, err := c.Generate(ctx, "ECDSA-P256", hsm.Key{Label: "test-1"})
	if hsm.CodeOf(err) == 0 {
		t.Errorf("a label that is taken: %v", err)
	}
	if _, err = c.Find(ctx, hsm.Key{Label: "test-none"}); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
		t.Errorf("a key that is not there: %v", err)
	}
	if _, err = c.Find(ctx, hsm.Key{Label: "other"}); hsm.CodeOf(err) != hsm.ActionProhibited {
		t.Errorf("a key that is not this client's: %v", err)
	}
	if err := c.Retire(ctx, hsm.Key{Label: "test-1"}); err != nil {
		t.Error(err)
	}
	if _, err = c.Find(ctx, hsm.Key{Label: "test-1"}); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
		t.Errorf("a key that was retired: %v", err)
	}

	// Other clients: of one section [client] that may less, and of none.
	for name, want := range map[string]string{"web-gateway": "may not generate", "stranger": "no section [client] has one of the names"} {
		config, err := credentials(t, a, name).Config(hsmtest.ServerName)
		if err != nil {
			t.Fatal(err)
		}
		other := hsm.New(address, config, patience)
		defer other.Close()
		if _, err = other.Generate(ctx, "ECDSA-P256", hsm.Key{Label: "test-1"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
