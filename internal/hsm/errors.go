package hsm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"qtls.dev/qtls/crypto/pkcs11"
)

// Why an hsmd gives no answer; errors.Is finds these in what the methods of
// Client return. An answer that is no is a Refusal.
var (
	// ErrUnreachable: no connection, or no answer in time.
	ErrUnreachable = errors.New("cannot be reached")
	// ErrServerCertificate: the daemon's certificate is not one to trust.
	ErrServerCertificate = errors.New("its certificate is refused")
	// ErrCutOff: the connection was closed before TLS was agreed on. A daemon
	// does that when too many shake hands at a time, and when it ends.
	ErrCutOff = errors.New("it closed the connection before TLS was agreed on")
	// ErrClientRefused: the daemon ended the TLS handshake: it does not trust
	// our certificate, as a rule.
	ErrClientRefused = errors.New("it refuses the TLS connection")
	// ErrProtocol: what is there speaks something else than qtls-hsm/1.
	ErrProtocol = errors.New("it does not speak " + Protocol)
)

// memberError is what went wrong on the way to an hsmd.
type memberError struct {
	address string
	// kind is one of the errors above.
	kind error
	// err is the cause; it may be nil.
	err error
}

func (e *memberError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("hsmd at %s: %v", e.address, e.kind)
	}
	return fmt.Sprintf("hsmd at %s: %v: %s", e.address, e.kind, lasting(e.err))
}

// lasting is the text of an error without what differs each time that the same
// thing goes wrong, as the port that a connection began at: it ends up in
// conditions, and each change of one is written and looked at.
func lasting(err error) string {
	text := err.Error()
	var (
		operation *net.OpError
		lookup    *net.DNSError
		expired   x509.CertificateInvalidError
	)
	if errors.As(err, &operation) {
		o := *operation
		o.Source = nil
		text = strings.ReplaceAll(text, operation.Error(), o.Error())
	}
	if errors.As(err, &lookup) { // it may have a connection of its own to tell of
		text = strings.ReplaceAll(text, lookup.Error(), "lookup "+lookup.Name+": "+kindOfLookup(lookup))
	}
	if errors.As(err, &expired) && expired.Reason == x509.Expired && expired.Cert != nil { // it tells the time
		text = strings.ReplaceAll(text, expired.Error(), fmt.Sprintf("x509: certificate has expired or is not yet valid: it is from %s until %s",
			expired.Cert.NotBefore.UTC().Format(time.RFC3339), expired.Cert.NotAfter.UTC().Format(time.RFC3339)))
	}
	return text
}

func kindOfLookup(err *net.DNSError) string {
	switch {
	case err.IsNotFound:
		return "no such host"
	case err.IsTimeout:
		return "the DNS server gives no answer in time"
	}
	return "the DNS server fails"
}

func (e *memberError) Unwrap() []error {
	if e.err == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.err}
}

// cutOffError is the end of a connection during the handshake.
type cutOffError struct{ error }

func (e cutOffError) Unwrap() error { return e.error }

// malformedError is in what a peer sent.
type malformedError string

func (e malformedError) Error() string { return string(e) }

func malformed(format string, args ...any) error {
	return malformedError("malformed answer: " + fmt.Sprintf(format, args...))
}

// kindOf says which of the errors above a failed connection is.
func kindOf(err error) error {
	var (
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		operation   *net.OpError
		malformed   malformedError
		cutOff      cutOffError
	)
	switch {
	case errors.As(err, &cutOff):
		return ErrCutOff
	case errors.As(err, &certificate):
		return ErrServerCertificate
	case errors.As(err, &operation) && operation.Op == "remote error": // how crypto/tls wraps alerts
		return ErrClientRefused
	case errors.As(err, &record), errors.As(err, &malformed), strings.HasPrefix(err.Error(), "tls: "):
		return ErrProtocol
	}
	return ErrUnreachable
}

// Refusal is the answer of an hsmd, or of its token, that says no.
type Refusal struct {
	Code    Code
	Message string
}

func (r *Refusal) Error() string {
	if strings.Contains(r.Message, r.Code.String()) {
		return r.Message
	}
	return strings.TrimSuffix(fmt.Sprintf("%s: %s", r.Code, r.Message), ": ")
}

// CodeOf is the PKCS #11 code in an error, 0 if there is none.
func CodeOf(err error) Code {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return 0
}

// errTooLong is in the error of a request that no frame has room for.
var errTooLong = errors.New("more than a request may have")

// RequestAtFault says that every member would refuse a request, now and later.
func RequestAtFault(err error) bool {
	return byCode[CodeOf(err)].Verdict == pkcs11.Request || errors.Is(err, errTooLong)
}

// Code is an error code of PKCS #11 (CK_RV).
type Code uint64

// byCode and byName are the codes that have a name in messages.
var byCode, byName = func() (map[Code]pkcs11.Error, map[string]Code) {
	byCode, byName := map[Code]pkcs11.Error{}, map[string]Code{}
	for _, e := range pkcs11.Errors {
		byCode[Code(e.Code)], byName[e.Name] = e, Code(e.Code)
	}
	return byCode, byName
}()

// The codes that this project asks after.
var (
	KeyHandleInvalid      = named("CKR_KEY_HANDLE_INVALID")
	PINIncorrect          = named("CKR_PIN_INCORRECT")
	PINInvalid            = named("CKR_PIN_INVALID")
	PINLenRange           = named("CKR_PIN_LEN_RANGE")
	PINExpired            = named("CKR_PIN_EXPIRED")
	PINLocked             = named("CKR_PIN_LOCKED")
	PINTooWeak            = named("CKR_PIN_TOO_WEAK")
	TokenNotPresent       = named("CKR_TOKEN_NOT_PRESENT")
	TokenNotRecognized    = named("CKR_TOKEN_NOT_RECOGNIZED")
	UserPINNotInitialized = named("CKR_USER_PIN_NOT_INITIALIZED")
	ActionProhibited      = named("CKR_ACTION_PROHIBITED")
	SessionCount          = named("CKR_SESSION_COUNT")
	LibraryLoadFailed     = named("CKR_LIBRARY_LOAD_FAILED")
)

// named panics if the table has no such name.
func named(name string) Code {
	code, ok := byName[name]
	if !ok {
		panic("crypto/pkcs11/verdicts.csv: no " + name)
	}
	return code
}

func (c Code) String() string {
	if known, ok := byCode[c]; ok {
		return known.Name
	}
	return fmt.Sprintf("CKR 0x%x", uint64(c))
}

// Code in the last error, 0 if it has none that is known. Of several it is the
// first, which is the cause: others are what became of it.
func (s Status) Code() Code {
	for _, word := range strings.FieldsFunc(s.LastError, func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') }) {
		if code, ok := byName[word]; ok {
			return code
		}
	}
	return 0
}
