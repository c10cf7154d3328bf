package hsm_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/pki"
)

// held are the algorithms of keys that tokens hold: all that are not the
// provider's. (RSA of one size here: the others differ in nothing.)
var held = []v1alpha1.KeyAlgorithm{"ML-DSA-44", "ML-DSA-65", "ML-DSA-87", "ECDSA-P256", "ECDSA-P384", "RSA-2048"}

func TestRequestsAndCertificatesAreSignedInATokenForEveryAlgorithm(t *testing.T) {
	s, c := world(t)
	for _, algorithm := range held {
		t.Run(string(algorithm), func(t *testing.T) {
			ctx, key := patient(t), hsm.Key{Label: string(algorithm)}
			if _, err := c.Generate(ctx, algorithm, key); err != nil {
				t.Fatal(err)
			}
			signer, err := hsm.NewSigner(ctx, key, c)
			if err != nil {
				t.Fatal(err)
			}
			request, err := pki.NewRequest(signer, pki.Names{CommonName: "www.example.com", DNSNames: []string{"www.example.com"}})
			if err != nil {
				t.Fatal(err)
			}
			csr, err := pki.ParseRequest(request) // checks its signature
			if err != nil {
				t.Fatal(err)
			}
			issued, err := pki.SelfSign(pki.Order{Request: csr, Duration: time.Hour, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, signer, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			leaf := issued.Chain.Leaf()
			if err := leaf.CheckSignature(leaf.SignatureAlgorithm, leaf.RawTBSCertificate, leaf.Signature); err != nil {
				t.Error(err)
			}
			if !signer.Object.Sensitive || signer.Object.Extractable {
				t.Errorf("the key is %+v", signer.Object)
			}
		})
	}
	if s.Accepted() != 1 {
		t.Errorf("%d connections, want 1 for all", s.Accepted())
	}
}

func TestSignaturesOfOtherForms(t *testing.T) {
	_, c := world(t)
	ctx := patient(t)
	signer := func(algorithm v1alpha1.KeyAlgorithm) *hsm.Signer {
		t.Helper()
		key := hsm.Key{Label: string(algorithm)}
		if _, err := c.Generate(ctx, algorithm, key); err != nil {
			t.Fatal(err)
		}
		s, err := hsm.NewSigner(ctx, key, c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	digest := sha512.Sum512([]byte("message"))

	r := signer("RSA-2048")
	for _, salt := range []int{rsa.PSSSaltLengthAuto, rsa.PSSSaltLengthEqualsHash, 20} {
		o := &rsa.PSSOptions{SaltLength: salt, Hash: crypto.SHA512}
		signature, err := r.Sign(rand.Reader, digest[:], o)
		if err == nil {
			err = rsa.VerifyPSS(r.Public().(*rsa.PublicKey), crypto.SHA512, digest[:], signature, o)
		}
		if err != nil {
			t.Errorf("RSA-PSS with the salt length %d: %v", salt, err)
		}
	}
	// A digest that is longer than the curve's order.
	e := signer("ECDSA-P256")
	signature, err := e.Sign(rand.Reader, digest[:], crypto.SHA512)
	if err != nil || !ecdsa.VerifyASN1(e.Public().(*ecdsa.PublicKey), digest[:], signature) {
		t.Errorf("ECDSA P-256 with SHA-512: %v", err)
	}
	m := signer("ML-DSA-44")
	o := &mldsa.Options{Context: "context"}
	if signature, err = m.Sign(rand.Reader, []byte("message"), o); err == nil {
		err = mldsa.Verify(m.Public().(*mldsa.PublicKey), []byte("message"), signature, o)
	}
	if err != nil {
		t.Errorf("ML-DSA with a context: %v", err)
	}

	for name, refused := range map[string]struct {
		signer *hsm.Signer
		data   []byte
		opts   crypto.SignerOpts
		want   string
	}{
		"ML-DSA over a digest":       {m, digest[:], crypto.SHA512, "ML-DSA signs messages here"},
		"SHA-1":                      {e, digest[:20], crypto.SHA1, "none of SHA-256"},
		"no hash":                    {e, digest[:], crypto.Hash(0), "none of SHA-256"},
		"half a digest":              {e, digest[:20], crypto.SHA512, "a digest of 20 bytes is not of SHA-512"},
		"more salt than has room":    {r, digest[:], &rsa.PSSOptions{SaltLength: 500, Hash: crypto.SHA512}, "a salt of 500 bytes: an RSA key of 2048 bits has room for 190"},
		"more than a frame can hold": {m, make([]byte, 65535), crypto.Hash(0), "more than a request may have"},
	} {
		if _, err := refused.signer.Sign(rand.Reader, refused.data, refused.opts); err == nil || !strings.Contains(err.Error(), refused.want) {
			t.Errorf("%s: %v, want %q", name, err, refused.want)
		}
	}
}

func TestTheNextMemberSignsWhereOneCannot(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	first, second := hsmtest.Serve(t, a), hsmtest.Serve(t, a)
	members := []*hsm.Client{client(t, a, first.Address), client(t, a, second.Address)}
	ctx, key := patient(t), hsm.Key{Label: "ca"}
	shared, err := pki.GenerateKey("ECDSA-P384")
	if err != nil {
		t.Fatal(err)
	}
	second.Token.Put("ca", shared, 1)

	// The first has no such key.
	signer, err := hsm.NewSigner(ctx, key, members...)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha512.Sum384([]byte("message"))
	sign := func() error {
		signature, err := signer.Sign(rand.Reader, digest[:], crypto.SHA384)
		if err == nil && !ecdsa.VerifyASN1(signer.Public().(*ecdsa.PublicKey), digest[:], signature) {
			t.Error("the signature does not verify")
		}
		return err
	}
	if err := sign(); err != nil {
		t.Error(err)
	}
	// The first is gone.
	first.Stop()
	if err := sign(); err != nil {
		t.Error(err)
	}
	// Nobody can: each says why.
	second.Stop()
	if err := sign(); err == nil || !strings.Contains(err.Error(), first.Address) || !strings.Contains(err.Error(), second.Address) || strings.Contains(err.Error(), "\n") {
		t.Errorf("with both gone: %v, want a line with both addresses", err)
	}
	if _, err := hsm.NewSigner(ctx, key); err == nil {
		t.Error("a signer without members")
	}
}

// What the request is at fault for, every member would say.
func TestAWrongRequestIsMadeOnce(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	first, second := hsmtest.Serve(t, a), hsmtest.Serve(t, a)
	shared, err := pki.GenerateKey("ECDSA-P256")
	if err != nil {
		t.Fatal(err)
	}
	first.Token.Put("ca", shared, 1)
	var asked atomic.Int32
	first.Intercept = func(_ net.Conn, operation byte, _ []byte) (*hsmtest.Answer, bool) {
		return hsmtest.Refuse(hsmtest.DataInvalid, "not that"), operation == 3
	}
	second.Intercept = func(net.Conn, byte, []byte) (*hsmtest.Answer, bool) {
		asked.Add(1)
		return nil, false
	}
	signer, err := hsm.NewSigner(patient(t), hsm.Key{Label: "ca"}, client(t, a, first.Address), client(t, a, second.Address))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha512.Sum384([]byte("message"))
	if _, err := signer.Sign(rand.Reader, digest[:], crypto.SHA384); err == nil || !strings.Contains(err.Error(), "CKR_DATA_INVALID: not that") {
		t.Errorf("%v", err)
	}
	if asked.Load() != 0 {
		t.Error("the second member was asked")
	}
}
