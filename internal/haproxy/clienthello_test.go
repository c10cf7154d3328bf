package haproxy

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// The reader runs here in a Lua of Go's, and is held to what crypto/tls makes
// and reads. The tests with real handshakes run it in HAProxy.

// hello is what the reader says of a ClientHello.
type hello struct {
	name                 string
	schemes, certSchemes []uint16
	tls13                bool
}

// reader is the read function of clienthello.lua.
type reader struct {
	state *lua.LState
	read  lua.LValue
}

func newReader(t testing.TB) reader {
	t.Helper()
	state := lua.NewState()
	t.Cleanup(state.Close)
	if err := state.DoString(clientHelloReader); err != nil {
		t.Fatal(err)
	}
	module := state.Get(-1).(*lua.LTable)
	return reader{state, module.RawGetString("read")}
}

// of returns what the reader says of data: a hello, or whether more may make
// one of it.
func (r reader) of(t testing.TB, data []byte) (h *hello, more bool) {
	t.Helper()
	if err := r.state.CallByParam(lua.P{Fn: r.read, NRet: 2, Protect: true}, lua.LString(data)); err != nil {
		t.Fatalf("the reader raises an error: %v\non %x", err, data)
	}
	defer r.state.Pop(2)
	more = lua.LVAsBool(r.state.Get(-1))
	table, ok := r.state.Get(-2).(*lua.LTable)
	if !ok {
		return nil, more
	}
	list := func(field string) (codes []uint16) {
		s := string(table.RawGetString(field).(lua.LString))
		for ; len(s) >= 2; s = s[2:] {
			codes = append(codes, binary.BigEndian.Uint16([]byte(s)))
		}
		if s != "" {
			t.Errorf("%s has half a code point", field)
		}
		return codes
	}
	return &hello{
		name:    string(table.RawGetString("name").(lua.LString)),
		schemes: list("schemes"), certSchemes: list("cert_schemes"),
		tls13: lua.LVAsBool(table.RawGetString("tls13")),
	}, more
}

// clientHello is what crypto/tls sends first: one record.
func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, config).Handshake()
		client.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// records cuts the content of one record into several, of size bytes each.
func records(record []byte, size int) []byte {
	var out []byte
	for part := range slices.Chunk(record[5:], size) {
		out = append(out, record[0], record[1], record[2])
		out = binary.BigEndian.AppendUint16(out, uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

func TestTheReaderSaysWhatAClientHelloSays(t *testing.T) {
	r := newReader(t)
	h, _ := r.of(t, clientHello(t, &tls.Config{ServerName: "Shop.Example.COM"}))
	if h == nil {
		t.Fatal("the reader does not read the ClientHello of crypto/tls")
	}
	if h.name != "shop.example.com" {
		t.Errorf("server name %q, want it in lower case", h.name)
	}
	if !h.tls13 {
		t.Error("the client supports TLS 1.3")
	}
	// Go 1.27 verifies handshakes that ML-DSA signs, and lists no ML-DSA in
	// signature_algorithms_cert.
	if !slices.Contains(h.schemes, 0x0905) || !slices.Contains(h.schemes, 0x0403) {
		t.Errorf("signature_algorithms %04x; mldsa65 and ecdsa_secp256r1_sha256 are among them", h.schemes)
	}
	if slices.Contains(h.certSchemes, 0x0905) || !slices.Contains(h.certSchemes, 0x0403) {
		t.Errorf("signature_algorithms_cert %04x; mldsa65 is not among them, ecdsa_secp256r1_sha256 is", h.certSchemes)
	}

	h, _ = r.of(t, clientHello(t, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})) // no hello is answered here
	if h == nil || h.name != "" || h.tls13 {
		t.Errorf("hello of TLS 1.2 without a server name: %+v", h)
	}
}

func TestWithoutSignatureAlgorithmsCertTheOtherListCounts(t *testing.T) {
	r := newReader(t)
	h, _ := r.of(t, built(extension(13, vector(2, []byte{9, 5, 4, 3})), extension(43, vector(1, []byte{3, 4}))))
	if h == nil || !slices.Equal(h.certSchemes, []uint16{0x0905, 0x0403}) || !h.tls13 {
		t.Errorf("hello %+v; RFC 8446, 4.2.3: signature_algorithms then also counts for certificates", h)
	}
}

// A scheme of ECDSA names a curve in TLS 1.3 alone (RFC 8422, 5.1).
func TestInTLS12TheClientsGroupsSayWhichCurvesAKeyMayHave(t *testing.T) {
	r := newReader(t)
	all := []uint16{0x0403, 0x0503, 0x0603, 0x0804, 0x0905}
	list := func(codes ...uint16) (b []byte) {
		for _, c := range codes {
			b = binary.BigEndian.AppendUint16(b, c)
		}
		return b
	}
	schemes := extension(13, vector(2, list(all...)))
	groups := func(codes ...uint16) []byte { return extension(10, vector(2, list(codes...))) }
	for _, c := range []struct {
		what       string
		extensions [][]byte
		want       []uint16
	}{
		{"X25519 and P-256", [][]byte{schemes, groups(0x001d, 0x0017)}, []uint16{0x0403, 0x0804, 0x0905}},
		{"groups before schemes", [][]byte{groups(0x0018, 0x0019), schemes}, []uint16{0x0503, 0x0603, 0x0804, 0x0905}},
		{"every curve", [][]byte{schemes, groups(0x0017, 0x0018, 0x0019)}, all},
		{"no curve", [][]byte{schemes, groups(0x001d)}, []uint16{0x0804, 0x0905}},
		{"no groups", [][]byte{schemes}, all},
		{"TLS 1.3", [][]byte{schemes, groups(0x001d, 0x0017), extension(43, vector(1, []byte{3, 4, 3, 3}))}, all},
	} {
		h, _ := r.of(t, built(c.extensions...))
		if h == nil || !slices.Equal(h.schemes, c.want) || !slices.Equal(h.certSchemes, all) {
			t.Errorf("%s: %+v, want the schemes %04x, and all for certificates", c.what, h, c.want)
		}
	}
}

func TestAHelloWithoutExtensionsIsRead(t *testing.T) {
	message := built()
	message = message[:len(message)-2] // not even the length of the extensions
	binary.BigEndian.PutUint16(message[3:], uint16(len(message)-5))
	message[8] = byte(len(message) - 9)
	if h, _ := newReader(t).of(t, message); h == nil || h.tls13 || len(h.schemes) > 0 {
		t.Errorf("hello %+v", h)
	}
}

func TestSeveralRecordsMakeOneHello(t *testing.T) {
	r := newReader(t)
	record := clientHello(t, &tls.Config{ServerName: "shop.example.com"})
	whole, _ := r.of(t, record)
	for _, size := range []int{1000, 500, 100, 40} {
		h, _ := r.of(t, records(record, size))
		if h == nil || h.name != whole.name || !slices.Equal(h.certSchemes, whole.certSchemes) {
			t.Errorf("records of %d bytes: %+v, want %+v", size, h, whole)
		}
	}
	// The header of the message may be cut, too.
	short := built(extension(43, vector(1, []byte{3, 4})))
	for size := 1; size < 10; size++ {
		if h, _ := r.of(t, records(short, size)); h == nil || !h.tls13 {
			t.Errorf("records of %d bytes: %+v", size, h)
		}
	}
}

func TestTheReadersWorkIsBounded(t *testing.T) {
	r := newReader(t)
	record := clientHello(t, &tls.Config{ServerName: "shop.example.com"})
	if h, more := r.of(t, records(record, 5)); h != nil || more {
		t.Errorf("%d records: %+v, more %v; no client sends so many", len(record)/5, h, more)
	}
	long := []byte{22, 3, 1, 0x40, 0, 1, 0x01, 0, 0}
	if h, more := r.of(t, append(long, make([]byte, 16380)...)); h != nil || more {
		t.Errorf("a hello of 65536 bytes: %+v, more %v; it is not waited for", h, more)
	}
}

func TestAPartOfAHelloIsWaitedFor(t *testing.T) {
	r := newReader(t)
	record := clientHello(t, &tls.Config{ServerName: "shop.example.com"})
	for _, data := range [][]byte{record, records(record, 300)} {
		for n := range len(data) {
			if h, more := r.of(t, data[:n]); h != nil || !more {
				t.Fatalf("%d of %d bytes: %+v, more %v", n, len(data), h, more)
			}
		}
	}
}

func TestWhatIsNoHelloIsNotWaitedFor(t *testing.T) {
	r := newReader(t)
	name := func(entry []byte) []byte { return extension(0, vector(2, entry)) }
	for what, data := range map[string][]byte{
		"HTTP":                      []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"SSH":                       []byte("SSH-2.0-OpenSSH_9.9\r\n"),
		"an alert":                  {21, 3, 3, 0, 2, 2, 40},
		"an empty record":           {22, 3, 1, 0, 0, 22, 3, 1, 0, 1, 1},
		"another handshake message": {22, 3, 3, 0, 4, 2, 0, 0, 0},
		"another one's beginning":   {22, 3, 3, 0, 90, 2},
		"a record that is too long": {22, 3, 1, 0x50, 0, 1},
		"a version of SSL 2":        {22, 2, 0, 0, 4, 1, 0, 0, 0},
		"a list of half a scheme":   built(extension(13, vector(2, []byte{9, 5, 4}))),
		"a list of half a group":    built(extension(10, vector(2, []byte{0, 29, 0}))),
		"an extension twice":        built(extension(13, vector(2, []byte{9, 5})), extension(13, vector(2, []byte{4, 3}))),
		"a name that runs over":     built(name([]byte{0, 0, 200, 'a'})),
		"an empty list of names":    built(name(nil)),
		"an extension that is cut":  built([]byte{0, 13, 0, 9, 0}),
	} {
		if h, more := r.of(t, data); h != nil || more {
			t.Errorf("%s: %+v, more %v", what, h, more)
		}
	}
}

// built is a ClientHello in one record, of TLS 1.2 but for its extensions.
func built(extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0)                                // session ID
	body = append(body, vector(2, []byte{0x13, 0x01})...) // cipher suites
	body = append(body, vector(1, []byte{0})...)          // compression methods
	body = append(body, vector(2, slices.Concat(extensions...))...)
	return append([]byte{22, 3, 1}, vector(2, append([]byte{1}, vector(3, body)...))...)
}

func extension(kind byte, content []byte) []byte {
	return append([]byte{0, kind}, vector(2, content)...)
}

func vector(bytes int, content []byte) []byte {
	length := binary.BigEndian.AppendUint32(nil, uint32(len(content)))
	return append(length[4-bytes:], content...)
}

// serverReads is what crypto/tls, as a server, reads of a ClientHello, or nil.
func serverReads(data []byte) *tls.ClientHelloInfo {
	var seen *tls.ClientHelloInfo
	_ = tls.Server(&recording{data: data}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		seen = h
		return nil, errors.New("seen")
	}}).Handshake()
	return seen
}

// keyMayBeOfItsCurve says whether a client of TLS 1.2 with these groups takes a
// signature by a key of the scheme's curve.
func keyMayBeOfItsCurve(s tls.SignatureScheme, groups []tls.CurveID) bool {
	curve, ecdsa := map[tls.SignatureScheme]tls.CurveID{
		tls.ECDSAWithP256AndSHA256: tls.CurveP256, tls.ECDSAWithP384AndSHA384: tls.CurveP384, tls.ECDSAWithP521AndSHA512: tls.CurveP521}[s]
	return !ecdsa || len(groups) == 0 || slices.Contains(groups, curve)
}

// recording is a connection whose other side has said all that it says.
type recording struct {
	net.Conn // nil: what is not below is not called
	data     []byte
}

func (c *recording) Read(b []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.data)
	c.data = c.data[n:]
	return n, nil
}

func (c *recording) Write(b []byte) (int, error)      { return len(b), nil }
func (c *recording) Close() error                     { return nil }
func (c *recording) SetWriteDeadline(time.Time) error { return nil }

func FuzzClientHello(f *testing.F) {
	record := clientHello(f, &tls.Config{ServerName: "shop.example.com"})
	f.Add(record)
	f.Add(records(record, 100))
	f.Add(record[:200])
	f.Add(clientHello(f, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}))
	f.Add(built(extension(0, vector(2, append([]byte{0}, vector(2, []byte("a.example"))...))), extension(13, vector(2, []byte{9, 5})), extension(50, vector(2, []byte{4, 3}))))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	r := newReader(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, more := r.of(t, data)
		later, laterMore := r.of(t, append(slices.Clone(data), 0))
		switch {
		case h != nil:
			if later == nil || later.name != h.name || !slices.Equal(later.schemes, h.schemes) {
				t.Errorf("what follows changes a hello: %+v, then %+v", h, later)
			}
		case !more:
			if later != nil || laterMore {
				t.Errorf("what was no hello becomes one: %+v, more %v", later, laterMore)
			}
		}
		if h == nil {
			return
		}
		// What a server reads is what the reader read.
		if seen := serverReads(data); seen != nil {
			var schemes []uint16
			for _, s := range seen.SignatureSchemes {
				if h.tls13 || keyMayBeOfItsCurve(s, seen.SupportedCurves) {
					schemes = append(schemes, uint16(s))
				}
			}
			if h.name != strings.ToLower(seen.ServerName) || !slices.Equal(h.schemes, schemes) {
				t.Errorf("the reader sees %q %04x, a server %q %04x", h.name, h.schemes, seen.ServerName, schemes)
			}
		}
	})
}
