package hsm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// Why an hsmd gives no answer; errors.Is finds these in what the methods of
// Client return. An answer that is no is a Refusal.
var (
	// ErrUnreachable: no connection, or no answer in time.
	ErrUnreachable = errors.New("cannot be reached")
	// ErrServerCertificate: the daemon's certificate is not one to trust.
	ErrServerCertificate = errors.New("its certificate is refused")
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
	)
	switch {
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
	return codes[CodeOf(err)].request || errors.Is(err, errTooLong)
}

// Code is an error code of PKCS #11 (CK_RV).
type Code uint64

// The codes that this project asks after.
const (
	KeyHandleInvalid      Code = 0x60
	ObjectHandleInvalid   Code = 0x82
	PINIncorrect          Code = 0xA0
	PINInvalid            Code = 0xA1
	PINLenRange           Code = 0xA2
	PINExpired            Code = 0xA3
	PINLocked             Code = 0xA4
	SessionCount          Code = 0xB1
	TokenNotPresent       Code = 0xE0
	TokenNotRecognized    Code = 0xE1
	UserPINNotInitialized Code = 0x102
	ActionProhibited      Code = 0x1B
)

// codes that have a name in messages.
var codes = map[Code]struct {
	name string
	// request says that the request is at fault: every member would refuse it.
	request bool
}{
	0x02:                  {"CKR_HOST_MEMORY", false},
	0x05:                  {"CKR_GENERAL_ERROR", false},
	0x06:                  {"CKR_FUNCTION_FAILED", false},
	0x07:                  {"CKR_ARGUMENTS_BAD", true},
	0x12:                  {"CKR_ATTRIBUTE_TYPE_INVALID", true},
	0x13:                  {"CKR_ATTRIBUTE_VALUE_INVALID", true},
	ActionProhibited:      {"CKR_ACTION_PROHIBITED", false}, // an allow-list of one member's own
	0x20:                  {"CKR_DATA_INVALID", true},
	0x21:                  {"CKR_DATA_LEN_RANGE", true},
	0x30:                  {"CKR_DEVICE_ERROR", false},
	0x31:                  {"CKR_DEVICE_MEMORY", false},
	0x32:                  {"CKR_DEVICE_REMOVED", false},
	0x54:                  {"CKR_FUNCTION_NOT_SUPPORTED", true},
	KeyHandleInvalid:      {"CKR_KEY_HANDLE_INVALID", false},
	0x62:                  {"CKR_KEY_SIZE_RANGE", true},
	0x63:                  {"CKR_KEY_TYPE_INCONSISTENT", true},
	0x68:                  {"CKR_KEY_FUNCTION_NOT_PERMITTED", true},
	0x70:                  {"CKR_MECHANISM_INVALID", true},
	0x71:                  {"CKR_MECHANISM_PARAM_INVALID", true},
	ObjectHandleInvalid:   {"CKR_OBJECT_HANDLE_INVALID", false},
	PINIncorrect:          {"CKR_PIN_INCORRECT", false},
	PINInvalid:            {"CKR_PIN_INVALID", false},
	PINLenRange:           {"CKR_PIN_LEN_RANGE", false},
	PINExpired:            {"CKR_PIN_EXPIRED", false},
	PINLocked:             {"CKR_PIN_LOCKED", false},
	SessionCount:          {"CKR_SESSION_COUNT", false},
	0xD0:                  {"CKR_TEMPLATE_INCOMPLETE", true},
	0xD1:                  {"CKR_TEMPLATE_INCONSISTENT", true},
	TokenNotPresent:       {"CKR_TOKEN_NOT_PRESENT", false},
	TokenNotRecognized:    {"CKR_TOKEN_NOT_RECOGNIZED", false},
	UserPINNotInitialized: {"CKR_USER_PIN_NOT_INITIALIZED", false},
	0x130:                 {"CKR_DOMAIN_PARAMS_INVALID", true},
	0x140:                 {"CKR_CURVE_NOT_SUPPORTED", true},
}

func (c Code) String() string {
	if known, ok := codes[c]; ok {
		return known.name
	}
	return fmt.Sprintf("CKR 0x%x", uint64(c))
}

// Code in the last error, 0 if it has none that is known.
func (s Status) Code() Code {
	words := strings.FieldsFunc(s.LastError, func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') })
	for code, known := range codes {
		if slices.Contains(words, known.name) {
			return code
		}
	}
	return 0
}
