//go:build crypto

package haproxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

// reframed sends the first record (a ClientHello) in another form.
type reframed struct {
	net.Conn
	as   func(record []byte) [][]byte // segments
	gap  time.Duration
	done bool
}

func (c *reframed) Write(b []byte) (int, error) {
	if c.done {
		return c.Conn.Write(b)
	}
	c.done = true
	for i, segment := range c.as(b) {
		if i > 0 {
			time.Sleep(c.gap)
		}
		if _, err := c.Conn.Write(segment); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func inSegments(n int) func([]byte) [][]byte {
	return func(record []byte) [][]byte {
		return slices.Collect(slices.Chunk(record, len(record)/n+1))
	}
}

func inRecords(n int) func([]byte) [][]byte {
	return func(record []byte) [][]byte { return [][]byte{records(record, (len(record)-5)/n+1)} }
}

// handshakeOver connects, and lets go.
func (p *pod) handshakeOver(port int, server string, as func([]byte) [][]byte, gap time.Duration, change func(*tls.Config)) error {
	p.t.Helper()
	conn, err := p.connectOver(port, server, as, gap, change)
	if err == nil {
		leave(conn)
	}
	return err
}

// connectOver connects with crypto/tls, whose hello arrives in another form.
func (p *pod) connectOver(port int, server string, as func([]byte) [][]byte, gap time.Duration, change func(*tls.Config)) (*tls.Conn, error) {
	p.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.roots)
	config := &tls.Config{RootCAs: pool, ServerName: server}
	if change != nil {
		change(config)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		p.t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetNoDelay(true)
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	client := tls.Client(&reframed{Conn: conn, as: as, gap: gap}, config)
	if err := client.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return client, nil
}

// dualPod serves ML-DSA-65 and ECDSA, each under its own family's issuer; on the
// next port ML-DSA-65 under the classical issuer, beside ECDSA; on the third as on
// the first, but classical first; and on the fourth ECDSA with P-384 before P-256.
func dualPod(t *testing.T) *pod {
	p := newPod(t)
	postQuantum, classical := newIssuer(t, "ML-DSA-65"), newIssuer(t, "ECDSA-P256")
	ecdsa := p.certificate(classical, "ECDSA-P256", anyScheme, host)
	p.start(gateway(prefer,
		model.Port{Number: port, Listeners: []model.Listener{https("web", []model.Hostname{host}, p.certificate(postQuantum, "ML-DSA-65", anyScheme, host), ecdsa)}},
		model.Port{Number: port + 1, Listeners: []model.Listener{https("mixed", []model.Hostname{host}, p.certificate(classical, "ML-DSA-65", anyScheme, host), ecdsa)}},
		model.Port{Number: port + 2, Listeners: []model.Listener{
			with(https("classical-first", []model.Hostname{host}, p.certificate(postQuantum, "ML-DSA-65", anyScheme, host), ecdsa), func(l *model.Listener) { l.Preference = v1alpha1.PreferClassical })}},
		model.Port{Number: port + 3, Listeners: []model.Listener{https("curves", []model.Hostname{host}, p.certificate(classical, "ECDSA-P384", anyScheme, host), ecdsa)}},
	), nil)
	return p
}

const (
	isMLDSA = "id-ml-dsa-65"
	isECDSA = "id-ecPublicKey"
)

func TestEachClientGetsTheBestChainThatItCanVerify(t *testing.T) {
	p := dualPod(t)
	for _, tc := range []struct {
		what string
		client
		port int
		want string
	}{
		{"takes both", openSSL("client"), port, isMLDSA},
		{"takes both, and they prefer classical", openSSL("client"), port + 2, isECDSA},
		{"takes ML-DSA alone, and they prefer classical", openSSL("client", "-sigalgs", "mldsa65"), port + 2, isMLDSA},
		{"takes another ML-DSA", openSSL("client", "-sigalgs", "mldsa44:mldsa87:ecdsa_secp256r1_sha256"), port, isECDSA},
		{"has no ML-DSA", openSSL("client-bookworm"), port, isECDSA},
		{"speaks TLS 1.2, and lists ML-DSA", openSSL("client", "-tls1_2"), port, isECDSA},
		{"excludes ML-DSA from signature_algorithms_cert", goTLS(nil), port, isECDSA},
		{"excludes it from there, but the chain is classical", goTLS(nil), port + 1, isMLDSA},
		{"speaks TLS 1.2, without the curve of the first key", goTLS(func(c *tls.Config) {
			c.MaxVersion, c.CurvePreferences = tls.VersionTLS12, []tls.CurveID{tls.X25519, tls.CurveP256}
		}), port + 3, isECDSA},
		{"needs a HelloRetryRequest", goTLS(func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.SecP384r1MLKEM1024} }), port, isECDSA},
		{"needs a HelloRetryRequest, and takes ML-DSA", openSSL("client", "-groups", "*X448:SecP384r1MLKEM1024"), port, isMLDSA},
	} {
		out, err := tc.connect(p, tc.port, host)
		h := p.handshake()
		t.Logf("%-55s %-25s %s %s", tc.what, tc.client.name, h.KeyAlgorithm, h.Group)
		if err != nil || h.KeyAlgorithm != tc.want {
			t.Errorf("%s: %s (%v), want %s\n%s", tc.what, h.KeyAlgorithm, err, tc.want, out)
		}
	}
}

// Which of two curves a certificate's key has does not stand in the log.
func TestEachClientGetsTheBestCurveThatItsGroupsAllow(t *testing.T) {
	p := dualPod(t)
	for _, tc := range []struct {
		what   string
		change func(*tls.Config)
		want   elliptic.Curve
	}{
		{"TLS 1.2 with both curves", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, elliptic.P384()},
		{"TLS 1.2 without P-384", func(c *tls.Config) {
			c.MaxVersion, c.CurvePreferences = tls.VersionTLS12, []tls.CurveID{tls.X25519, tls.CurveP256}
		}, elliptic.P256()},
		{"TLS 1.3, whose schemes name the curve", func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256} }, elliptic.P384()},
	} {
		conn, err := p.dial(port+3, host, tc.change)
		if err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		key, ok := conn.ConnectionState().PeerCertificates[0].PublicKey.(*ecdsa.PublicKey)
		if !ok || key.Curve != tc.want {
			t.Errorf("%s: a key of %T, %v, want %s", tc.what, conn.ConnectionState().PeerCertificates[0].PublicKey, key, tc.want.Params().Name)
		}
		leave(conn)
	}
}

func TestAHelloArrivesInPieces(t *testing.T) {
	p := dualPod(t)
	for _, tc := range []struct {
		what string
		as   func([]byte) [][]byte
		gap  time.Duration
	}{
		{"two segments", inSegments(2), 50 * time.Millisecond},
		{"forty segments", inSegments(40), 5 * time.Millisecond},
		{"two records", inRecords(2), 0},
		{"sixty records", inRecords(60), 0},
		{"five records in segments that do not match", func(record []byte) [][]byte { return inSegments(7)(records(record, len(record)/5+1)) }, 20 * time.Millisecond},
	} {
		// That Go's client gets ML-DSA shows that the hello was read: at the
		// fallback it gets ECDSA.
		var h Handshake
		var err error
		for range 10 { // a busy machine may make it later than is waited for
			start := time.Now()
			err = p.handshakeOver(port+1, host, tc.as, tc.gap, nil)
			took := time.Since(start)
			if h = p.handshake(); h.KeyAlgorithm == isMLDSA || took < 3*time.Second {
				break
			}
		}
		t.Logf("%-45s %s %s", tc.what, h.KeyAlgorithm, h.Group)
		if err != nil || h.KeyAlgorithm != isMLDSA {
			t.Errorf("%s: %+v, %v; want %s", tc.what, h, err, isMLDSA)
		}
	}
	for _, tc := range []struct {
		what string
		as   func([]byte) [][]byte
		gap  time.Duration
	}{
		{"more records than are read", inRecords(200), 0},
		{"later than is waited for", inSegments(2), 4 * time.Second},
	} {
		err := p.handshakeOver(port+1, host, tc.as, tc.gap, nil)
		h := p.handshake()
		t.Logf("%-45s %s %s", tc.what, h.KeyAlgorithm, h.Group)
		if err != nil || h.KeyAlgorithm != isECDSA {
			t.Errorf("%s: %s, %v; want the fallback, %s", tc.what, h.KeyAlgorithm, err, isECDSA)
		}
	}
}

// A later version of a client may list ML-DSA in signature_algorithms_cert.
// crypto/tls cannot be made to, so the server's first answer is looked at.
func TestAClientThatListsMLDSAForCertificates(t *testing.T) {
	dualPod(t)
	record := clientHello(t, &tls.Config{ServerName: host})
	list := []byte{0, 50, 0, 26, 0, 24} // signature_algorithms_cert of 12 schemes
	i := bytes.Index(record, list)
	if i < 0 {
		t.Fatalf("crypto/tls sends another signature_algorithms_cert: %x", record)
	}
	record = slices.Insert(record, i+len(list), 9, 5)
	record[i+3] += 2
	record[i+5] += 2
	add := func(at, bytes int) { // two bytes more
		number := make([]byte, 4)
		copy(number[4-bytes:], record[at:])
		binary.BigEndian.PutUint32(number, binary.BigEndian.Uint32(number)+2)
		copy(record[at:], number[4-bytes:])
	}
	add(3, 2)
	add(6, 3)
	extensions := 9 + 2 + 32
	extensions += 1 + int(record[extensions])
	extensions += 2 + int(binary.BigEndian.Uint16(record[extensions:]))
	extensions += 1 + int(record[extensions])
	add(extensions, 2)
	if h, _ := newReader(t).of(t, record); h == nil || !slices.Contains(h.certSchemes, 0x0905) {
		t.Fatalf("the hello that was made is %+v", h)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(record); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	answer := make([]byte, 6)
	if _, err := io.ReadFull(conn, answer); err != nil {
		t.Fatal(err)
	}
	if answer[0] != 22 || answer[5] != 2 {
		t.Errorf("the server answers %x, want a ServerHello", answer)
	}
	n, _ := io.Copy(io.Discard, &io.LimitedReader{R: conn, N: 6000})
	t.Logf("the server's flight has more than %d bytes", n)
	if n < 6000 { // one with ECDSA has less than 2500
		t.Errorf("the server's flight has %d bytes, too few for an ML-DSA chain", n)
	}
}

func TestAHelloThatNeverEndsIsLetGo(t *testing.T) {
	dualPod(t)
	record := clientHello(t, &tls.Config{ServerName: host})
	for what, data := range map[string][]byte{
		"nothing":        nil,
		"half a hello":   record[:len(record)/2],
		"half in pieces": records(record, 100)[:len(record)/2],
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			start := time.Now()
			if _, err := conn.Write(data); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(start.Add(patience))
			_, err = io.Copy(io.Discard, conn)
			took := time.Since(start)
			t.Logf("%s: closed after %s", what, took.Round(100*time.Millisecond))
			if err != nil { // 3 s for the hello, 10 for the handshake
				t.Errorf("%s: %v after %s", what, err, took)
			}
		})
	}
}

func TestWhatIsNoHelloIsRefused(t *testing.T) {
	p := dualPod(t)
	for what, data := range map[string][]byte{
		"HTTP":             []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"a malformed one":  built(extension(13, []byte{0, 9, 5})),
		"random bytes":     bytes.Repeat([]byte{0xa5}, 600),
		"an empty message": {22, 3, 1, 0, 4, 1, 0, 0, 0},
	} {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		answer, err := io.ReadAll(conn)
		conn.Close()
		h := p.handshake()
		t.Logf("%-18s answer %x, logged: %s (%s)", what, answer, h.Detail, h.Reason)
		if !h.Failed || (err != nil && !strings.Contains(err.Error(), "reset")) {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
	}
	// And the gateway serves on.
	if _, err := goTLS(nil).connect(p, port, host); err != nil {
		t.Error(err)
	}
}

// echo answers each line with its own name.
func echo(t testing.TB, name string) dataplane.Endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for in := bufio.NewScanner(conn); in.Scan(); {
					_, _ = io.WriteString(conn, name+"\n")
				}
			}()
		}
	}()
	return dataplane.Endpoint{Address: "127.0.0.1", Port: int32(l.Addr().(*net.TCPAddr).Port)}
}

// ask sends a line and returns the answer.
func ask(conn net.Conn) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "who\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func TestTheServerNameChoosesTheListener(t *testing.T) {
	p := newPod(t)
	i := newIssuer(t, "ECDSA-P256")
	cert := func(names ...string) model.Certificate { return p.certificate(i, "ECDSA-P256", anyScheme, names...) }
	tcp := func(name string, group string, hostnames []model.Hostname, certificates ...model.Certificate) model.Listener {
		return model.Listener{Name: name, Protocol: v1alpha1.ProtocolTLS, Hostnames: hostnames, Certificates: certificates, Backends: []model.Backend{{Group: group, Weight: 1}}}
	}
	passthrough := func(name, group string, hostnames ...model.Hostname) model.Listener {
		return model.Listener{Name: name, Protocol: v1alpha1.ProtocolTLSPassthrough, Hostnames: hostnames, Backends: []model.Backend{{Group: group, Weight: 1}}}
	}
	// A server of its own, behind passthrough.
	inner, key := i.issue(t, "ECDSA-P256", pkix.Name{CommonName: "inner"}, "pass.example.com", "a.pass.example.com", "anything.test")
	pair, err := tls.X509KeyPair(inner, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for in := bufio.NewScanner(conn); in.Scan(); {
					_, _ = io.WriteString(conn, "inner\n")
				}
			}()
		}
	}()
	endpoints := dataplane.Endpoints{
		"exact:1": {echo(t, "exact")}, "wild:1": {echo(t, "wild")}, "any:1": {echo(t, "any")},
		"pass:1": {{Address: "127.0.0.1", Port: int32(l.Addr().(*net.TCPAddr).Port)}},
	}
	all := []string{"a.example.com", "*.example.com", "a.b.example.com", "example.com", "other.test", "pass.example.com"}
	p.start(gateway(prefer,
		model.Port{Number: port, Listeners: []model.Listener{
			tcp("any", "any:1", nil, cert(all...)),
			tcp("exact", "exact:1", []model.Hostname{"a.example.com"}, cert(all...)),
			passthrough("pass", "pass:1", "pass.example.com", "*.pass.example.com"),
			tcp("wild", "wild:1", []model.Hostname{"*.example.com"}, cert(all...)),
		}},
		model.Port{Number: port + 1, Listeners: []model.Listener{
			tcp("exact2", "exact:1", []model.Hostname{"a.example.com"}, cert(all...)),
			passthrough("pass2", "pass:1", "pass.example.com", "*.pass.example.com"),
		}},
		model.Port{Number: port + 2, Listeners: []model.Listener{passthrough("pass3", "pass:1", "pass.example.com")}},
		model.Port{Number: port + 3, Listeners: []model.Listener{passthrough("pass4", "pass:1")}},
		model.Port{Number: port + 4, Listeners: []model.Listener{tcp("exact5", "exact:1", []model.Hostname{"a.example.com"}, cert(all...))}},
	), endpoints)

	const unrecognized = "unrecognized_name"
	for _, tc := range []struct {
		port   int
		server string
		want   string
	}{
		{port, "a.example.com", "exact"},
		{port, "A.Example.COM", "exact"},
		{port, "b.example.com", "wild"},
		{port, "a.b.example.com", "any"}, // a wildcard stands for one label
		{port, "example.com", "any"},
		{port, "other.test", "any"},
		{port, "", "any"},
		{port, "pass.example.com", "inner"},
		{port, "a.pass.example.com", "inner"},
		{port + 1, "a.example.com", "exact"},
		{port + 1, "pass.example.com", "inner"},
		{port + 1, "b.example.com", unrecognized},
		{port + 1, "", unrecognized},
		{port + 2, "pass.example.com", "inner"},
		{port + 2, "a.pass.example.com", unrecognized},
		{port + 2, "", unrecognized},
		{port + 3, "anything.test", "inner"},
		{port + 4, "a.example.com", "exact"},
		{port + 4, "b.example.com", unrecognized},
		{port + 4, "", unrecognized},
	} {
		got, err := p.whoAnswers(tc.port, tc.server)
		if err != nil && strings.Contains(err.Error(), "tls: unrecognized name") { // crypto/tls' words for the alert
			got, err = unrecognized, nil
		}
		t.Logf("port %d, server name %-22q %s", tc.port, tc.server, got)
		if err != nil || got != tc.want {
			t.Errorf("port %d, server name %q: %q, %v; want %q", tc.port, tc.server, got, err, tc.want)
		}
		// In several records it is the same.
		if tc.server != "" && tc.want != unrecognized {
			if err := p.handshakeOver(tc.port, strings.ToLower(tc.server), inRecords(3), 0, nil); err != nil {
				t.Errorf("port %d, server name %q in three records: %v", tc.port, tc.server, err)
			}
		}
	}
	// A hello that comes too late is not taken for another listener's.
	late, err := p.connectOver(port, "a.example.com", inSegments(2), 4*time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if got, err := ask(late); err == nil {
		t.Errorf("a late hello for %q is answered by %q", "a.example.com", got)
	} else {
		t.Logf("a late hello: %v", err)
	}
}

// whoAnswers connects and asks. Without a server name the certificate is still
// verified, for the name that the listener serves.
func (p *pod) whoAnswers(port int, server string) (string, error) {
	conn, err := p.dial(port, server, func(c *tls.Config) {
		if server != "" {
			return
		}
		c.InsecureSkipVerify = true // crypto/tls sends no server name only so; verified below
		c.ServerName = ""
		c.VerifyConnection = func(s tls.ConnectionState) error {
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: c.RootCAs, DNSName: "example.com"})
			return err
		}
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return ask(conn)
}
