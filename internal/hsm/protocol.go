// Package hsm speaks with hsmd (crypto/hsmd), the daemon in front of a token:
// the protocol qtls-hsm/1 over mutual TLS, and a crypto.Signer whose private
// key never leaves the token.
package hsm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
)

// Protocol is what ALPN calls it.
const Protocol = "qtls-hsm/1"

// Both directions have frames of one form, all integers big-endian:
//
//	u32 length of what follows
//	u64 ID of the request, which its answer repeats
//	u8  operation of a request; status of an answer, 0 for success
//	    body
//
// Strings in bodies are a u16 length and that many bytes.
const (
	maxFrame    = 65536
	frameHeader = 9
	maxBody     = maxFrame - frameHeader
)

// operation is what a request asks for.
type operation byte

const (
	opStatus   operation = 1
	opFind     operation = 2
	opSign     operation = 3
	opGenerate operation = 4
	opRetire   operation = 5
)

func (o operation) String() string {
	switch o {
	case opStatus:
		return "status"
	case opFind:
		return "find"
	case opSign:
		return "sign"
	case opGenerate:
		return "generate"
	case opRetire:
		return "retire"
	}
	return fmt.Sprintf("operation %d", byte(o))
}

// frame is a request, or an answer to one.
type frame struct {
	id uint64
	// kind is an operation in a request, and a status in an answer.
	kind byte
	body []byte
}

func (f frame) marshal() []byte {
	length := frameHeader + len(f.body)
	b := make([]byte, 0, 4+length)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	b = binary.BigEndian.AppendUint64(b, f.id)
	b = append(b, f.kind)
	return append(b, f.body...)
}

// readFrame reads one, and allocates no more than it may have.
func readFrame(r io.Reader) (frame, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < frameHeader || n > maxFrame {
		return frame{}, malformed("a frame says that it has %d bytes; %d to %d are possible", n, frameHeader, maxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return frame{id: binary.BigEndian.Uint64(b), kind: b[8], body: b[frameHeader:]}, nil
}

// writer puts a body together. Its error is the first.
type writer struct {
	b   []byte
	err error
}

func (w *writer) text(what, s string) *writer {
	if len(s) > math.MaxUint16 && w.err == nil {
		w.err = fmt.Errorf("%s has %d bytes; at most %d can be sent", what, len(s), math.MaxUint16)
	}
	w.b = binary.BigEndian.AppendUint16(w.b, uint16(len(s)))
	w.b = append(w.b, s...)
	return w
}

func (w *writer) octet(b byte) *writer {
	w.b = append(w.b, b)
	return w
}

// reader takes a body apart. Its error is the first; then it gives nothing but
// zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(what string, n int) []byte {
	if r.err == nil && len(r.b) < n {
		r.err = malformed("%s is cut off", what)
	}
	if r.err != nil {
		return make([]byte, min(n, 8))
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) bytes(what string) []byte {
	n := int(binary.BigEndian.Uint16(r.take(what, 2)))
	return r.take(what, n)
}

// end says whether all was as it has to be, and nothing is left.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = malformed("%d bytes too many", len(r.b))
	}
	return r.err
}

// Key names a private key in a token.
type Key struct {
	// Label is its CKA_LABEL.
	Label string
	// ID is its CKA_ID, where the label is not enough.
	ID []byte
}

func (k Key) String() string {
	if len(k.ID) == 0 {
		return fmt.Sprintf("%q", k.Label)
	}
	return fmt.Sprintf("%q (ID %x)", k.Label, k.ID)
}

func (w *writer) key(k Key) *writer { return w.text("the label", k.Label).text("the ID", string(k.ID)) }

func marshalKey(k Key) ([]byte, error) {
	w := new(writer).key(k)
	return w.b, w.err
}

func marshalGenerate(algorithm v1alpha1.KeyAlgorithm, k Key) ([]byte, error) {
	w := new(writer).text("the algorithm", string(algorithm)).key(k)
	return w.b, w.err
}

// Mechanism is how a token signs.
type Mechanism struct {
	kind       byte
	parameters []byte
}

const (
	kindRSAPKCS1 = 1
	kindRSAPSS   = 3
	kindECDSA    = 4
	kindMLDSA    = 5

	// noHedge is a mechanism without a parameter, which leaves to the token
	// whether ML-DSA signatures are hedged; with one, hedgePreferred does.
	noHedge        = 255
	hedgePreferred = 0
)

// RSAPKCS1 signs a DigestInfo.
func RSAPKCS1() Mechanism { return Mechanism{kind: kindRSAPKCS1} }

// RSAPSS signs a digest. The numbers are PKCS #11's: of CKM_SHA256 and such,
// and of CKG_MGF1_SHA256 and such.
func RSAPSS(hash, mgf, saltLength uint64) Mechanism {
	var p []byte
	for _, n := range []uint64{hash, mgf, saltLength} {
		p = binary.BigEndian.AppendUint64(p, n)
	}
	return Mechanism{kindRSAPSS, p}
}

// ECDSA signs a digest; the signature is r and s, one after the other.
func ECDSA() Mechanism { return Mechanism{kind: kindECDSA} }

// MLDSA signs a message (pure ML-DSA) with a context of at most 255 bytes.
func MLDSA(context string) Mechanism {
	hedge := byte(noHedge)
	if context != "" {
		hedge = hedgePreferred
	}
	return Mechanism{kindMLDSA, new(writer).octet(hedge).text("the context", context).b}
}

func marshalSign(k Key, m Mechanism, data []byte) ([]byte, error) {
	w := new(writer).key(k).octet(m.kind)
	w.b = append(w.b, m.parameters...)
	w.text("what is to be signed", string(data))
	return w.b, w.err
}

// Object is a private key as its token shows it.
type Object struct {
	// PublicKey is its SubjectPublicKeyInfo in DER form.
	PublicKey []byte
	// Sensitive keys are never shown in plain (CKA_SENSITIVE).
	Sensitive bool
	// Extractable keys leave the token wrapped (CKA_EXTRACTABLE).
	Extractable bool
	// Local keys were generated in the token (CKA_LOCAL).
	Local bool
}

const (
	flagSensitive   = 1
	flagExtractable = 2
	flagLocal       = 4
)

func unmarshalObject(body []byte) (Object, error) {
	r := &reader{b: body}
	o := Object{PublicKey: r.bytes("the public key")}
	flags := r.take("the flags", 1)[0]
	o.Sensitive, o.Extractable, o.Local = flags&flagSensitive != 0, flags&flagExtractable != 0, flags&flagLocal != 0
	return o, r.end()
}

func unmarshalSignature(body []byte) ([]byte, error) {
	r := &reader{b: body}
	signature := r.bytes("the signature")
	if r.err == nil && len(signature) == 0 {
		return nil, malformed("the signature is empty")
	}
	return signature, r.end()
}

func unmarshalNothing(body []byte) (struct{}, error) {
	return struct{}{}, (&reader{b: body}).end()
}

func unmarshalRefusal(body []byte) (*Refusal, error) {
	r := &reader{b: body}
	refusal := &Refusal{Code: Code(binary.BigEndian.Uint64(r.take("the code", 8)))}
	refusal.Message = strings.ToValidUTF8(string(r.bytes("the message")), "\uFFFD")
	return refusal, r.end()
}

// Status is what an hsmd says of itself and its token.
type Status struct {
	// Member is its own name, Token the token's label.
	Member string `json:"member"`
	Token  string `json:"token"`
	// State of the token: Up, Down or Starting.
	State v1alpha1.HSMMemberState `json:"state"`
	// Sessions that are open, Signatures made and Failures since it started.
	Sessions   int64 `json:"sessions"`
	Signatures int64 `json:"signatures"`
	Failures   int64 `json:"failures"`
	// Latency of the latest signatures.
	Latency struct {
		P50 int64 `json:"p50"`
		P99 int64 `json:"p99"`
	} `json:"latencyMicros"`
	// LastError of the token, with the name of its PKCS #11 code.
	LastError string `json:"lastError"`
}

func unmarshalStatus(body []byte) (Status, error) {
	r := &reader{b: body}
	document := r.bytes("the status")
	if err := r.end(); err != nil {
		return Status{}, err
	}
	var s Status
	if err := json.Unmarshal(document, &s); err != nil {
		return Status{}, malformed("the status: %v", err)
	}
	switch s.State {
	case v1alpha1.HSMMemberUp, v1alpha1.HSMMemberDown, v1alpha1.HSMMemberStarting:
		return s, nil
	}
	return Status{}, malformed("the status has the state %q; %s, %s and %s are possible", s.State, v1alpha1.HSMMemberUp, v1alpha1.HSMMemberDown, v1alpha1.HSMMemberStarting)
}
