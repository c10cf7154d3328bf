// Package hsmtest is a stand-in for hsmd in tests: the protocol as the contract
// writes it, read and written independently of package hsm, over keys in
// memory.
package hsmtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/internal/testcert"
)

// ServerName in the certificates of every Server, ClientName in that of its
// client.
const (
	ServerName = "hsm-a.tls.svc"
	ClientName = "qtls-operator"
)

// Codes that a Token answers with.
const (
	ArgumentsBad     = 0x07
	KeyHandleInvalid = 0x60
	DataInvalid      = 0x20
	TemplateBad      = 0xD1
)

// Authority issues the certificates of servers and clients.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority makes one.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: testcert.Key(t, "ECDSA-P256")}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	a.cert = testcert.Sign(t, template, template, a.key.Public(), a.key)
	return a
}

// PEM of the authority's certificate.
func (a *Authority) PEM() []byte {
	return testcert.PEM(a.cert)
}

// Issue a certificate for a DNS name, and its key, in PEM form.
func (a *Authority) Issue(t testing.TB, name string) (certificate, key []byte) {
	t.Helper()
	k := testcert.Key(t, "ECDSA-P256")
	c := testcert.Sign(t, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}, a.cert, k.Public(), a.key)
	return testcert.PEM(c), testcert.KeyPEM(t, k)
}

// Answer is what a request gets: a status and a body. Nil for none at all.
type Answer struct {
	Status byte
	Body   []byte
}

// Refuse a request with a PKCS #11 code.
func Refuse(code uint64, message string) *Answer {
	return &Answer{1, text(binary.BigEndian.AppendUint64(nil, code), message)}
}

// Server is a stand-in for one hsmd. Its fields may be changed before the first
// request.
type Server struct {
	// Address that it listens on, on the loopback interface.
	Address string
	// Token answers requests.
	Token *Token
	// Intercept, if set, answers instead of the token where ok is true. It runs
	// in a goroutine of each request's own. Closing the connection is up to it,
	// too.
	Intercept func(conn net.Conn, operation byte, body []byte) (answer *Answer, ok bool)

	listener net.Listener
	mu       sync.Mutex
	conns    map[net.Conn]bool
	accepted int
}

// Serve starts one; the test's end ends it.
func Serve(t testing.TB, a *Authority, change ...func(*tls.Config)) *Server {
	t.Helper()
	certificate, err := tls.X509KeyPair(a.Issue(t, ServerName))
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(a.cert)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768},
		Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		NextProtos: []string{"qtls-hsm/1"},
	}
	for _, c := range change {
		c(config)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Address: listener.Addr().String(), Token: NewToken(), listener: listener, conns: map[net.Conn]bool{}}
	go s.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		s.Disconnect()
	})
	return s
}

// Disconnect every client.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

// Stop listening, and disconnect every client.
func (s *Server) Stop() {
	_ = s.listener.Close()
	s.Disconnect()
}

// Accepted is how many connections there were.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = true
		s.accepted++
		s.mu.Unlock()
		go s.serve(conn)
	}
}

func (s *Server) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
	}()
	var writing sync.Mutex
	for {
		var length [4]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(length[:])
		if n < 9 || n > 65536 {
			return
		}
		request := make([]byte, n)
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		go func() {
			id, operation, body := request[:8], request[8], request[9:]
			var answer *Answer
			ok := false
			if s.Intercept != nil {
				answer, ok = s.Intercept(conn, operation, body)
			}
			if !ok {
				answer = s.Token.Answer(operation, body)
			}
			if answer == nil {
				return
			}
			writing.Lock()
			defer writing.Unlock()
			b := binary.BigEndian.AppendUint32(nil, uint32(9+len(answer.Body)))
			b = append(append(b, id...), answer.Status)
			_, _ = conn.Write(append(b, answer.Body...))
		}()
	}
}

// Token has keys in memory.
type Token struct {
	mu   sync.Mutex
	keys map[string]crypto.Signer
	// flags of a key: 1 sensitive, 2 extractable, 4 generated in the token.
	flags  map[string]byte
	status map[string]any
	// signatures that were made.
	signatures int
}

// NewToken has no keys, and is up.
func NewToken() *Token {
	return &Token{keys: map[string]crypto.Signer{}, flags: map[string]byte{}, status: map[string]any{
		"member": "hsm-a", "token": "gw", "state": "Up", "sessions": 4, "latencyMicros": map[string]any{"p50": 900, "p99": 1200}}}
}

// Put a key into the token, with its flags.
func (t *Token) Put(label string, key crypto.Signer, flags byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys[label], t.flags[label] = key, flags
}

// Has says whether there is a key of this label.
func (t *Token) Has(label string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys[label] != nil
}

// Set a field of the status.
func (t *Token) Set(field string, value any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status[field] = value
}

// Answer a request.
func (t *Token) Answer(operation byte, body []byte) *Answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &fields{b: body}
	switch operation {
	case 1:
		t.status["signatures"] = t.signatures
		document, err := json.Marshal(t.status)
		if err != nil {
			panic(err)
		}
		return &Answer{Body: text(nil, string(document))}
	case 2:
		label, _ := r.text(), r.text()
		if !r.done() {
			return Refuse(ArgumentsBad, "malformed")
		}
		return t.object(label)
	case 3:
		label, _ := r.text(), r.text()
		return t.sign(label, r)
	case 4:
		algorithm, label, _ := r.text(), r.text(), r.text()
		generate := generators[algorithm]
		switch {
		case !r.done() || generate == nil:
			return Refuse(ArgumentsBad, "malformed")
		case t.keys[label] != nil:
			return Refuse(TemplateBad, "the label is taken")
		}
		t.keys[label], t.flags[label] = generate(), 1|4
		return t.object(label)
	case 5:
		label, _ := r.text(), r.text()
		if !r.done() {
			return Refuse(ArgumentsBad, "malformed")
		}
		if t.keys[label] == nil {
			return Refuse(KeyHandleInvalid, "no such key")
		}
		delete(t.keys, label)
		return &Answer{}
	}
	return Refuse(ArgumentsBad, "no such operation")
}

func (t *Token) object(label string) *Answer {
	key := t.keys[label]
	if key == nil {
		return Refuse(KeyHandleInvalid, "no such key")
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		panic(err)
	}
	return &Answer{Body: append(text(nil, string(der)), t.flags[label])}
}

func (t *Token) sign(label string, r *fields) *Answer {
	key := t.keys[label]
	kind := r.number(1)
	var hash, salt uint64
	var context string
	switch kind {
	case 3:
		hash, _, salt = r.number(8), r.number(8), r.number(8)
	case 5:
		hedge := r.number(1)
		context = r.text()
		if (hedge == 255) != (context == "") {
			return Refuse(ArgumentsBad, "a context without a parameter, or the other way round")
		}
	}
	data := []byte(r.text())
	if !r.done() {
		return Refuse(ArgumentsBad, "malformed")
	}
	if key == nil {
		return Refuse(KeyHandleInvalid, "no such key")
	}
	signature, err := sign(key, byte(kind), hash, salt, context, data)
	if err != nil {
		return Refuse(DataInvalid, err.Error())
	}
	t.signatures++
	return &Answer{Body: text(nil, string(signature))}
}

func sign(key crypto.Signer, kind byte, hash, salt uint64, context string, data []byte) ([]byte, error) {
	switch kind {
	case 1:
		return rsa.SignPKCS1v15(rand.Reader, key.(*rsa.PrivateKey), 0, data)
	case 3:
		h := map[uint64]crypto.Hash{0x250: crypto.SHA256, 0x260: crypto.SHA384, 0x270: crypto.SHA512}[hash]
		return key.Sign(rand.Reader, data, &rsa.PSSOptions{SaltLength: int(salt), Hash: h})
	case 4:
		der, err := ecdsa.SignASN1(rand.Reader, key.(*ecdsa.PrivateKey), data)
		if err != nil {
			return nil, err
		}
		var s struct{ R, S *big.Int }
		if _, err := asn1.Unmarshal(der, &s); err != nil {
			return nil, err
		}
		half := (key.(*ecdsa.PrivateKey).Params().BitSize + 7) / 8
		return append(s.R.FillBytes(make([]byte, half)), s.S.FillBytes(make([]byte, half))...), nil
	default:
		return key.Sign(rand.Reader, data, &mldsa.Options{Context: context})
	}
}

var generators = map[string]func() crypto.Signer{
	"ML-DSA-44":  func() crypto.Signer { return must(mldsa.GenerateKey(mldsa.MLDSA44())) },
	"ML-DSA-65":  func() crypto.Signer { return must(mldsa.GenerateKey(mldsa.MLDSA65())) },
	"ML-DSA-87":  func() crypto.Signer { return must(mldsa.GenerateKey(mldsa.MLDSA87())) },
	"ECDSA-P256": func() crypto.Signer { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) },
	"ECDSA-P384": func() crypto.Signer { return must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)) },
	"RSA-2048":   func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 2048)) },
}

func must[K crypto.Signer](key K, err error) crypto.Signer {
	if err != nil {
		panic(err)
	}
	return key
}

func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// fields of a request's body.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) take(n int) []byte {
	if len(f.b) < n {
		f.bad, f.b = true, nil
		return make([]byte, n)
	}
	taken := f.b[:n]
	f.b = f.b[n:]
	return taken
}

func (f *fields) number(size int) uint64 {
	var n uint64
	for _, b := range f.take(size) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (f *fields) text() string { return string(f.take(int(f.number(2)))) }

func (f *fields) done() bool { return !f.bad && len(f.b) == 0 }

// Share a key with another token, as an HSM's own replication does.
func (t *Token) Share(from *Token, label string) {
	from.mu.Lock()
	key, flags := from.keys[label], from.flags[label]
	from.mu.Unlock()
	t.Put(label, key, flags)
}
