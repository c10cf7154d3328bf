package agentpki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/keypair"
)

// known is how long an authority is in everybody's bundle before it signs: so
// long may it take a mounted Secret to be seen.
const known = 24 * time.Hour

// keyNext and keyNextKey are the Secret keys of the authority that comes next.
const (
	keyNext    = "next.crt"
	keyNextKey = "next.key"
)

// Succession is an authority, and from when it is old, the one after it. Peers
// trust that one for a day before anything is signed by it: two of them that
// read their certificates at different times understand each other all the
// time.
type Succession struct {
	current, next *authority
}

// Succeed reads what Data wrote and takes the succession to where it is now.
// What is missing or does not parse is made anew; changed says whether Data has
// to be written, and reason why, if something did not parse.
func Succeed(data map[string][]byte, now time.Time) (s *Succession, changed bool, reason, err error) {
	s = &Succession{}
	if len(data) > 0 {
		if s, reason = parseSuccession(data); reason != nil {
			s = &Succession{}
		}
	}
	switch {
	case s.current == nil || now.After(s.current.pair.Chain[0].NotAfter):
		s.current, err = newAuthority(nil, now)
		s.next = nil
	case s.next == nil && s.current.aged(now):
		s.next, err = newAuthority(s.current, now)
	case s.next != nil && now.After(s.next.pair.Chain[0].NotBefore.Add(skew+known)):
		s.current, s.next = s.next, nil
	default:
		return s, false, reason, nil
	}
	return s, true, reason, err
}

func parseSuccession(data map[string][]byte) (*Succession, error) {
	current, err := parseAuthority(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey], data[keyAuthorities])
	if err != nil {
		return nil, err
	}
	s := &Succession{current: current}
	if len(data[keyNext]) > 0 {
		s.next, err = parseAuthority(data[keyNext], data[keyNextKey], data[keyAuthorities])
	}
	return s, err
}

// bundle of the authorities to trust.
func (s *Succession) bundle() []*x509.Certificate {
	if s.next != nil {
		return s.next.bundle
	}
	return s.current.bundle
}

// Pool of the authorities to trust.
func (s *Succession) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range s.bundle() {
		pool.AddCert(c)
	}
	return pool
}

// Data of the Secret that keeps the succession.
func (s *Succession) Data() (map[string][]byte, error) {
	data, err := secretData(s.current.pair, s.bundle())
	if err != nil || s.next == nil {
		return data, err
	}
	next, err := secretData(s.next.pair, nil)
	if err != nil {
		return nil, err
	}
	data[keyNext], data[keyNextKey] = next[corev1.TLSCertKey], next[corev1.TLSPrivateKeyKey]
	return data, nil
}

// Issue a certificate for a name, as the data of a Secret with the bundle of
// authorities.
func (s *Succession) Issue(name string, usage x509.ExtKeyUsage, now time.Time) (map[string][]byte, error) {
	pair, err := s.current.issue(name, usage, now)
	if err != nil {
		return nil, err
	}
	return secretData(pair, s.bundle())
}

// Certificate issues one for a name, for who keeps it in memory.
func (s *Succession) Certificate(name string, usage x509.ExtKeyUsage, now time.Time) (*tls.Certificate, error) {
	pair, err := s.current.issue(name, usage, now)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{pair.Chain[0].Raw}, PrivateKey: pair.Key, Leaf: pair.Chain[0]}, nil
}

// Keep gives the data of a Secret with a certificate for a name: those there
// are, if they need no renewal, with a new bundle where there is one.
func (s *Succession) Keep(data map[string][]byte, name string, usage x509.ExtKeyUsage, now time.Time) (map[string][]byte, error) {
	pair, err := keypair.Parse(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil || !s.current.current(pair.Chain[0], name, now) {
		data, err = s.Issue(name, usage, now)
		if err != nil {
			return nil, fmt.Errorf("certificate for %s: %w", name, err)
		}
		return data, nil
	}
	if bundle := certificatesPEM(s.bundle()); !bytes.Equal(data[keyAuthorities], bundle) {
		data = maps.Clone(data)
		data[keyAuthorities] = bundle
	}
	return data, nil
}
