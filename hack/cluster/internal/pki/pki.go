// Package pki makes a cluster's certificate authorities, certificates and kubeconfigs.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime of every certificate: far longer than a test cluster lives.
const lifetime = 365 * 24 * time.Hour

// A Cert is one certificate to issue, and its key.
type Cert struct {
	// Name is that of the files: NAME.crt and NAME.key.
	Name string
	// CommonName and Organization are the user and the groups that Kubernetes authenticates.
	CommonName   string
	Organization []string
	Usage        x509.ExtKeyUsage
	DNSNames     []string
	IPs          []net.IP
}

// An Authority signs certificates. It writes what it makes into its folder.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
	// PEM is the authority's certificate.
	PEM []byte
}

// NewAuthority makes an authority and writes dir/NAME.crt and dir/NAME.key.
func NewAuthority(dir, name string, now time.Time) (*Authority, error) {
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	a := &Authority{dir: dir, now: now}
	key, der, err := a.create(tmpl, nil)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.key = key
	a.PEM, _, err = write(dir, name, der, key)
	return a, err
}

// Issue makes a key and a certificate and returns both in PEM.
func (a *Authority) Issue(c Cert) (certPEM, keyPEM []byte, err error) {
	key, der, err := a.create(&x509.Certificate{
		Subject:               pkix.Name{CommonName: c.CommonName, Organization: c.Organization},
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{c.Usage},
		BasicConstraintsValid: true,
		DNSNames:              c.DNSNames,
		IPAddresses:           c.IPs,
	}, a.cert)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate %s: %w", c.Name, err)
	}
	return write(a.dir, c.Name, der, key)
}

// create signs tmpl with the authority's key; a nil parent means self-signed.
func (a *Authority) create(tmpl, parent *x509.Certificate) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	tmpl.SerialNumber = serial
	tmpl.NotBefore = a.now.Add(-time.Hour) // clocks that differ a little
	tmpl.NotAfter = a.now.Add(lifetime)
	signer := a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), signer)
	return key, der, err
}

// NewServiceAccountKey writes dir/sa.key and dir/sa.pub, which sign and check service-account tokens.
func NewServiceAccountKey(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "sa.key"), block("PRIVATE KEY", der), 0o600); err != nil {
		return err
	}
	if der, err = x509.MarshalPKIXPublicKey(key.Public()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "sa.pub"), block("PUBLIC KEY", der), 0o644)
}

func write(dir, name string, der []byte, key *ecdsa.PrivateKey) (certPEM, keyPEM []byte, err error) {
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	certPEM, keyPEM = block("CERTIFICATE", der), block("PRIVATE KEY", keyDER)
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), certPEM, 0o644); err != nil {
		return nil, nil, err
	}
	return certPEM, keyPEM, os.WriteFile(filepath.Join(dir, name+".key"), keyPEM, 0o600)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
