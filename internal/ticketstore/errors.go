package ticketstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// What an error of a store is about; errors.Is finds them in what its methods
// return.
var (
	// ErrNotFound: every member that answered has no such ring.
	ErrNotFound = errors.New("no such ring is stored")
	// ErrNewer: the member holds a ring with a higher epoch; see NewerError.
	ErrNewer = errors.New("a newer ring is stored")
	// ErrMalformed: what is stored there is no document.
	ErrMalformed = errors.New("the value is no ring")
	// ErrUnreachable: no connection, or no answer in time.
	ErrUnreachable = errors.New("cannot be reached")
	// ErrCertificate: the server's certificate is not one to trust.
	ErrCertificate = errors.New("the server's certificate is refused")
	// ErrTLS: no TLS connection, for another reason than the certificate.
	ErrTLS = errors.New("no TLS 1.3 connection")
	// ErrCredentials: the user name or the password is wrong, or missing.
	ErrCredentials = errors.New("the server refuses the user name or password")
	// ErrPermission: the user may not do this.
	ErrPermission = errors.New("the user lacks a permission")
	// ErrRefused: the server says no for a reason of its own.
	ErrRefused = errors.New("the server refuses the command")
)

// MemberError is what went wrong with one member. Its text carries neither
// password nor content.
type MemberError struct {
	// Member is the address, or, for Sentinel and Cluster, those of the store.
	Member string
	// Kind is one of the errors above.
	Kind error
	// Err is the cause; it may be nil.
	Err error
}

func (e *MemberError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %v", e.Member, e.Kind)
	}
	// The client joins what each sentinel said, mostly the same.
	var said []string
	for line := range strings.Lines(e.Err.Error()) {
		if line = strings.TrimSpace(line); !slices.ContainsFunc(said, func(s string) bool { return strings.HasSuffix(s, line) }) {
			said = append(said, line)
		}
	}
	return fmt.Sprintf("%s: %v: %s", e.Member, e.Kind, strings.Join(said, ", "))
}

// Unwrap gives kind and cause.
func (e *MemberError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// memberErrors are those of several members, on one line.
type memberErrors []error

func (m memberErrors) Error() string {
	var all []string
	for _, err := range m {
		all = append(all, err.Error())
	}
	return strings.Join(all, "; ")
}

func (m memberErrors) Unwrap() []error { return m }

// NewerError is in what Publish returns for a member that has a newer ring.
type NewerError struct {
	// Stored is that ring.
	Stored Document
}

func (e *NewerError) Error() string { return fmt.Sprintf("its epoch is %d", e.Stored.Epoch) }

// dialError is what the first use of a connection reports that could not be
// made. (No single error to unwrap: the client would take this one off.)
type dialError struct{ err error }

func (e *dialError) Error() string   { return e.err.Error() }
func (e *dialError) Unwrap() []error { return []error{e.err} }

// memberError classifies what a command to a member ended with.
func memberError(member, command string, err error) *MemberError {
	var own *MemberError
	if errors.As(err, &own) {
		return own
	}
	e := &MemberError{Member: member, Err: err}
	var reply redis.Error
	var dial *dialError
	switch {
	case errors.Is(err, redis.Nil): // nothing else that is asked for can be nil
		e.Kind, e.Err = ErrUnreachable, errors.New("its sentinels know of no such primary")
	case errors.As(err, &dial):
		e.Kind = dialKind(dial.err)
	case errors.As(err, &reply):
		e.Kind = replyKind(reply.Error())
		if errors.Is(e.Kind, ErrPermission) {
			e.Err = fmt.Errorf("%s: %w", command, err)
		}
	default:
		e.Kind = ErrUnreachable
	}
	return e
}

// ended says whether a connection that there was is no more.
func ended(err error) bool {
	var dial *dialError
	return !errors.As(err, &dial) && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

func replyKind(reply string) error {
	code, _, _ := strings.Cut(reply, " ")
	switch code {
	case "WRONGPASS", "NOAUTH":
		return ErrCredentials
	case "NOPERM":
		return ErrPermission
	case "ERR":
		if strings.Contains(reply, "AUTH") || strings.Contains(reply, "invalid password") {
			return ErrCredentials // as servers before ACLs say it
		}
	}
	return ErrRefused
}

func dialKind(err error) error {
	var (
		verification *tls.CertificateVerificationError
		invalid      x509.CertificateInvalidError
		unknown      x509.UnknownAuthorityError
		host         x509.HostnameError
		record       tls.RecordHeaderError
		operation    *net.OpError
	)
	switch {
	case errors.As(err, &verification), errors.As(err, &invalid), errors.As(err, &unknown), errors.As(err, &host):
		return ErrCertificate
	case errors.As(err, &record):
		return ErrTLS
	case errors.As(err, &operation) && (operation.Op == "remote error" || operation.Op == "local error"):
		return ErrTLS // that is how crypto/tls wraps alerts
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.EOF), operation != nil:
		return ErrUnreachable
	}
	if strings.HasPrefix(err.Error(), "tls: ") {
		return ErrTLS
	}
	return ErrUnreachable
}
