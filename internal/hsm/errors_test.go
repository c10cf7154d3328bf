package hsm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/crypto/pkcs11"
)

// What goes wrong again reads the same again, though each time from another
// port and at another time: conditions have these texts.
func TestTheSameErrorReadsTheSame(t *testing.T) {
	address := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 244, 1, 7), Port: port} }
	certificate := &x509.Certificate{NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1893553445, 0)}
	for name, test := range map[string]struct {
		err  func(n int) error
		kind error
		want string
	}{
		"a connection that is reset": {func(n int) error {
			return fmt.Errorf("%w: %w", errEnded, &net.OpError{Op: "read", Net: "tcp", Source: address(40000 + n), Addr: address(7443), Err: os.NewSyscallError("read", syscall.ECONNRESET)})
		}, ErrUnreachable, "find: the connection ended: read tcp 10.244.1.7:7443: read: connection reset by peer"},
		"one that is refused": {func(int) error {
			return &net.OpError{Op: "dial", Net: "tcp", Addr: address(7443), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}, ErrUnreachable, "find: dial tcp 10.244.1.7:7443: connect: connection refused"},
		"an alert": {func(n int) error {
			return &net.OpError{Op: "remote error", Net: "tcp", Source: address(40000 + n), Addr: address(7443), Err: errors.New("tls: bad certificate")}
		}, ErrClientRefused, "find: remote error tcp 10.244.1.7:7443: tls: bad certificate"},
		"no such name": {func(int) error {
			return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Name: "hsm-a", Server: "10.96.0.10:53", Err: "no such host", IsNotFound: true}}
		}, ErrUnreachable, "find: dial tcp: lookup hsm-a: no such host"},
		"no DNS": {func(n int) error {
			return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Name: "hsm-a", Server: "10.96.0.10:53", IsTimeout: true,
				Err: fmt.Sprintf("read udp 10.244.1.7:%d->10.96.0.10:53: i/o timeout", 40000+n)}}
		}, ErrUnreachable, "find: dial tcp: lookup hsm-a: the DNS server gives no answer in time"},
		"DNS that fails": {func(n int) error {
			return &net.DNSError{Name: "hsm-a", Err: fmt.Sprintf("read udp 10.244.1.7:%d->10.96.0.10:53: connection refused", 40000+n)}
		}, ErrUnreachable, "find: lookup hsm-a: the DNS server fails"},
		"an expired certificate": {func(n int) error {
			return &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Cert: certificate, Reason: x509.Expired,
				Detail: fmt.Sprintf("current time 2030-01-02T03:04:%02dZ is after 2030-01-02T03:04:05Z", 10+n)}}
		}, ErrServerCertificate, "find: tls: failed to verify certificate: x509: certificate has expired or is not yet valid: it is from 1970-01-01T00:00:00Z until 2030-01-02T03:04:05Z"},
	} {
		c := &Client{address: "hsm-a:7443"}
		for n := range 2 {
			err := c.failed(opFind, test.err(n))
			if want := fmt.Sprintf("hsmd at hsm-a:7443: %v: %s", test.kind, test.want); err.Error() != want || !errors.Is(err, test.kind) {
				t.Errorf("%s:\n%v\nwant\n%s", name, err, want)
			}
		}
	}
}

// A real connection has a port of its own, too.
func TestNoErrorNamesTheLocalPort(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0) // a reset
			_ = conn.Close()
		}
	}()
	c := New(listener.Addr().String(), &tls.Config{ServerName: "hsm-a"}, time.Minute)
	t.Cleanup(c.Close)
	_, err = c.Status(t.Context())
	if !errors.Is(err, ErrCutOff) || strings.Contains(err.Error(), "->") {
		t.Errorf("%v, want %v, and no port of ours", err, ErrCutOff)
	}
}

// One file, crypto/pkcs11/verdicts.csv, says of each code whether another
// member would say the same; the module reads it, too.
func TestWhoseErrorACodeIs(t *testing.T) {
	for _, e := range pkcs11.Errors {
		code := Code(e.Code)
		if code.String() != e.Name || CodeOf(&Refusal{Code: code}) != code {
			t.Errorf("%s reads %q", e.Name, code)
		}
		if RequestAtFault(&Refusal{Code: code}) != (e.Verdict == pkcs11.Request) {
			t.Errorf("%s is %s, and RequestAtFault says otherwise", e.Name, e.Verdict)
		}
		if e.Why == "" {
			t.Errorf("%s: why %s?", e.Name, e.Verdict)
		}
	}
	for code, at := range map[Code]bool{
		named("CKR_DATA_LEN_RANGE"):    true,
		named("CKR_MECHANISM_INVALID"): false, // another member may be of another kind
		ActionProhibited:               false, // a rule of one member's own
		KeyHandleInvalid:               false,
		named("CKR_SESSION_COUNT"):     false,
		PINLocked:                      false,
		0x80000001:                     false, // a vendor's own
	} {
		if RequestAtFault(&Refusal{Code: code}) != at {
			t.Errorf("RequestAtFault(%s) is %v", code, !at)
		}
	}
}

// An error that led to another is written before it.
func TestTheLastErrorsCodeIsItsCause(t *testing.T) {
	for text, want := range map[string]Code{
		"C_Login: CKR_PIN_LOCKED (0xa4)":                                  PINLocked,
		"C_Login: CKR_PIN_LOCKED (0xa4): CKR_DEVICE_ERROR (0x30)":         PINLocked,
		"no answer in 2000 ms: CKR_DEVICE_ERROR (0x30)":                   named("CKR_DEVICE_ERROR"),
		"C_Sign: 0x80000001":                                              0,
		"a key with the label XCKR_PIN_LOCKED_X: CKR_DEVICE_ERROR (0x30)": named("CKR_DEVICE_ERROR"),
	} {
		if got := (Status{LastError: text}).Code(); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
