// Package agentpki issues the certificates by which the operator and the
// gateways' agents know each other, and the daemons of an HSMPool and their
// clients. They are the project's own and short: the user's issuers have no part
// in them. Keys are ECDSA P-256; the key exchange that they authenticate is
// hybrid (see package mtls).
package agentpki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/keypair"
)

const (
	// caLife and leafLife are how long the certificates are valid; a CA is
	// followed by a new one when half its life is over, and is trusted to its
	// end. A leaf is renewed when a third of its life is left.
	caLife   = 2 * 365 * 24 * time.Hour
	leafLife = 30 * 24 * time.Hour
	// skew is by how much clocks may differ.
	skew = 5 * time.Minute

	// keyAuthorities is the Secret key of the bundle of authorities.
	keyAuthorities = corev1.ServiceAccountRootCAKey
)

// authority signs the certificates of a succession.
type authority struct {
	pair *keypair.KeyPair
	// bundle of the authorities to trust: this one and those before it that
	// are still valid.
	bundle []*x509.Certificate
}

// newAuthority makes an authority as of now that also trusts the earlier one,
// which may be nil.
func newAuthority(earlier *authority, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "qtls agents", SerialNumber: now.UTC().Format("20060102150405")},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{pair: &keypair.KeyPair{Chain: []*x509.Certificate{cert}, Key: key}, bundle: []*x509.Certificate{cert}}
	if earlier != nil {
		for _, c := range earlier.bundle {
			if c.NotAfter.After(now) && len(a.bundle) < 3 {
				a.bundle = append(a.bundle, c)
			}
		}
	}
	return a, nil
}

func parseAuthority(certificate, key, authorities []byte) (*authority, error) {
	pair, err := keypair.Parse(certificate, key)
	if err != nil {
		return nil, err
	}
	bundle, err := keypair.ParseCertificates(authorities)
	if err != nil {
		return nil, err
	}
	if !pair.Chain[0].IsCA {
		return nil, errors.New("the certificate is not that of an authority")
	}
	return &authority{pair: pair, bundle: bundle}, nil
}

// aged says whether it is time for a new authority.
func (a *authority) aged(now time.Time) bool {
	return now.After(a.pair.Chain[0].NotAfter.Add(-caLife / 2))
}

// current says whether a certificate is of this authority, for this name, and
// not near its end.
func (a *authority) current(leaf *x509.Certificate, name string, now time.Time) bool {
	return leaf.VerifyHostname(name) == nil &&
		leaf.CheckSignatureFrom(a.pair.Chain[0]) == nil &&
		now.Before(leaf.NotAfter.Add(-leafLife/3))
}

func (a *authority) issue(name string, usage x509.ExtKeyUsage, now time.Time) (*keypair.KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		DNSNames:     []string{name},
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.pair.Chain[0], key.Public(), a.pair.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &keypair.KeyPair{Chain: []*x509.Certificate{cert}, Key: key}, nil
}

func secretData(pair *keypair.KeyPair, bundle []*x509.Certificate) (map[string][]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(pair.Key)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		corev1.TLSCertKey:       pair.ChainPEM(),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		keyAuthorities:          certificatesPEM(bundle),
	}, nil
}

func certificatesPEM(certs []*x509.Certificate) []byte {
	return (&keypair.KeyPair{Chain: certs}).ChainPEM()
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail on the systems that Go supports
	}
	return n.Add(n, big.NewInt(1))
}
