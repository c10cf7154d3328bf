package embedded

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/keypair"
)

const (
	// authorityLife is how long the authority is valid. With what it is followed
	// by everything is new, passwords too: clients cannot connect until they
	// have read it, and do without meanwhile.
	authorityLife = 10 * 365 * 24 * time.Hour
	// serverLife is for how long a server's certificate is. It is renewed, by
	// the same authority, when a third of that is left.
	serverLife = 365 * 24 * time.Hour
	// skew is by how much clocks may differ.
	skew = 5 * time.Minute
)

// Keys of the Secret. The servers see the first five.
const (
	KeyCertificate = corev1.TLSCertKey
	KeyPrivateKey  = corev1.TLSPrivateKeyKey
	KeyAuthority   = corev1.ServiceAccountRootCAKey
	KeyUsers       = "users.acl"
	KeyConfig      = "valkey.conf"

	keyAuthorityKey = "ca.key"
	passwordSuffix  = "-password"
)

// ServerFiles are the keys of the Secret that the servers need. The others stay
// with the operator.
func ServerFiles() []string {
	return []string{KeyAuthority, KeyCertificate, KeyPrivateKey, KeyUsers, KeyConfig}
}

// Credentials of one gateway's store.
type Credentials struct {
	authority, server *keypair.KeyPair
	passwords         map[Role]string
}

// withPassword are the roles that have one.
var withPassword = []Role{Operator, Agent}

// New makes everything, for servers on these hosts.
func New(hosts []string, now time.Time) (*Credentials, error) {
	c := &Credentials{passwords: map[Role]string{}}
	for _, role := range withPassword {
		secret := make([]byte, 32)
		if _, err := rand.Read(secret); err != nil {
			return nil, err
		}
		c.passwords[role] = base64.RawURLEncoding.EncodeToString(secret)
	}
	var err error
	c.authority, err = issue(&x509.Certificate{
		Subject:  pkix.Name{CommonName: "qtls ticket store", SerialNumber: now.UTC().Format("20060102150405")},
		NotAfter: now.Add(authorityLife), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}, nil, now)
	if err != nil {
		return nil, err
	}
	return c, c.issueServer(hosts, now)
}

func (c *Credentials) issueServer(hosts []string, now time.Time) (err error) {
	c.server, err = issue(&x509.Certificate{
		DNSNames: hosts, NotAfter: now.Add(serverLife), KeyUsage: x509.KeyUsageDigitalSignature,
		// A replica is a client of its primary, with the same certificate.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, c.authority, now)
	return err
}

// issue a certificate with a key of its own; without an authority it signs
// itself. The key exchange that these keys authenticate is hybrid.
func issue(template *x509.Certificate, by *keypair.KeyPair, now time.Time) (*keypair.KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	template.SerialNumber.Add(template.SerialNumber, big.NewInt(1))
	template.NotBefore = now.Add(-skew)
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.Chain[0], by.Key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("certificate of the ticket store: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &keypair.KeyPair{Chain: []*x509.Certificate{cert}, Key: key}, nil
}

// Parse reads what Data wrote. Its errors say which key is unsound, and nothing
// of its content.
func Parse(data map[string][]byte) (*Credentials, error) {
	c := &Credentials{passwords: map[Role]string{}}
	var err error
	if c.authority, err = keypair.Parse(data[KeyAuthority], data[keyAuthorityKey]); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", KeyAuthority, keyAuthorityKey, err)
	}
	if c.server, err = keypair.Parse(data[KeyCertificate], data[KeyPrivateKey]); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", KeyCertificate, KeyPrivateKey, err)
	}
	if !c.authority.Chain[0].IsCA {
		return nil, fmt.Errorf("%s is not the certificate of an authority", KeyAuthority)
	}
	if err := c.server.Chain[0].CheckSignatureFrom(c.authority.Chain[0]); err != nil {
		return nil, fmt.Errorf("%s is not signed by %s: %w", KeyCertificate, KeyAuthority, err)
	}
	for _, role := range withPassword {
		secret, err := base64.RawURLEncoding.DecodeString(string(data[string(role)+passwordSuffix]))
		if err != nil || len(secret) < 32 {
			return nil, fmt.Errorf("%s%s is not one that the operator has made", role, passwordSuffix)
		}
		c.passwords[role] = string(data[string(role)+passwordSuffix])
	}
	return c, nil
}

// Ensure reads a Secret's data and sees to it that it is as it has to be for
// servers on these hosts: what is sound stays, a certificate that is near its
// end or lacks a host is issued anew, and of what is missing or unsound all is
// made anew; reason says why. The error is that of the random source, or the
// like.
func Ensure(data map[string][]byte, hosts []string, now time.Time) (c *Credentials, reason error, err error) {
	c, reason = Parse(data)
	if reason == nil && !now.Before(c.authority.Chain[0].NotAfter.Add(-serverLife)) {
		reason = errors.New("the authority ends within the life of a certificate")
	}
	if reason != nil {
		c, err = New(hosts, now)
		return c, reason, err
	}
	leaf := c.server.Chain[0]
	switch {
	case !now.Before(c.RenewAt()):
		reason = errors.New("the server's certificate has less than a third of its life left")
	case !slices.Equal(leaf.DNSNames, hosts):
		reason = fmt.Errorf("the server's certificate is for %v, not %v", leaf.DNSNames, hosts)
	default:
		return c, nil, nil
	}
	return c, reason, c.issueServer(hosts, now)
}

// RenewAt is when Ensure will issue another certificate.
func (c *Credentials) RenewAt() time.Time { return c.server.Chain[0].NotAfter.Add(-serverLife / 3) }

// Data of the Secret.
func (c *Credentials) Data() (map[string][]byte, error) {
	authorityKey, err := keypair.MarshalKey(c.authority.Key)
	if err != nil {
		return nil, err
	}
	serverKey, err := keypair.MarshalKey(c.server.Key)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{
		KeyAuthority:    c.authority.ChainPEM(),
		keyAuthorityKey: authorityKey,
		KeyCertificate:  c.server.ChainPEM(),
		KeyPrivateKey:   serverKey,
		KeyUsers:        []byte(c.users()),
		KeyConfig:       []byte(Config(FilesDir, DataDir, Port)),
	}
	for _, role := range withPassword {
		data[string(role)+passwordSuffix] = []byte(c.passwords[role])
	}
	return data, nil
}
