package hsm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
)

// What is on the wire is a contract with crypto/hsmd: these are its bytes.
func TestRequestsOnTheWire(t *testing.T) {
	key := Key{Label: "web", ID: []byte{1}}
	body := func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	label := "0003" + hex.EncodeToString([]byte("web")) + "0001" + "01"
	for name, c := range map[string]struct {
		op   operation
		body []byte
		want string
	}{
		"status":   {opStatus, nil, "00000009" + "0000000000000007" + "01"},
		"find":     {opFind, body(marshalKey(key)), "00000011" + "0000000000000007" + "02" + label},
		"retire":   {opRetire, body(marshalKey(key)), "00000011" + "0000000000000007" + "05" + label},
		"generate": {opGenerate, body(marshalGenerate("ML-DSA-65", key)), "0000001c" + "0000000000000007" + "04" + "0009" + hex.EncodeToString([]byte("ML-DSA-65")) + label},
		"sign, RSA PKCS #1": {opSign, body(marshalSign(key, RSAPKCS1(), []byte{0xAA})),
			"00000015" + "0000000000000007" + "03" + label + "01" + "0001aa"},
		"sign, RSA PSS": {opSign, body(marshalSign(key, RSAPSS(0x250, 2, 32), []byte{0xAA})),
			"0000002d" + "0000000000000007" + "03" + label + "03" + "0000000000000250" + "0000000000000002" + "0000000000000020" + "0001aa"},
		"sign, ECDSA": {opSign, body(marshalSign(key, ECDSA(), []byte{0xAA})),
			"00000015" + "0000000000000007" + "03" + label + "04" + "0001aa"},
		"sign, ML-DSA": {opSign, body(marshalSign(key, MLDSA(""), []byte{0xAA})),
			"00000018" + "0000000000000007" + "03" + label + "05" + "ff" + "0000" + "0001aa"},
		"sign, ML-DSA with a context": {opSign, body(marshalSign(key, MLDSA("ctx"), []byte{0xAA})),
			"0000001b" + "0000000000000007" + "03" + label + "05" + "00" + "0003" + hex.EncodeToString([]byte("ctx")) + "0001aa"},
		"sign, a key without an ID": {opSign, body(marshalSign(Key{Label: "web"}, ECDSA(), nil)),
			"00000013" + "0000000000000007" + "03" + "0003" + hex.EncodeToString([]byte("web")) + "0000" + "04" + "0000"},
	} {
		if got := hex.EncodeToString(frame{7, byte(c.op), c.body}.marshal()); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestAnswersAreRead(t *testing.T) {
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	o, err := unmarshalObject(unhex("0002" + "3000" + "05"))
	if err != nil || !bytes.Equal(o.PublicKey, []byte{0x30, 0}) || !o.Sensitive || o.Extractable || !o.Local {
		t.Errorf("an object: %+v, %v", o, err)
	}
	if o, err := unmarshalObject(unhex("0002" + "3000" + "02")); err != nil || o.Sensitive || !o.Extractable || o.Local {
		t.Errorf("an extractable object: %+v, %v", o, err)
	}
	if s, err := unmarshalSignature(unhex("0002" + "aabb")); err != nil || !bytes.Equal(s, []byte{0xAA, 0xBB}) {
		t.Errorf("a signature: %x, %v", s, err)
	}
	r, err := unmarshalRefusal(unhex("00000000000000a4" + "0006" + hex.EncodeToString([]byte("locked"))))
	if err != nil || r.Code != PINLocked || r.Error() != "CKR_PIN_LOCKED: locked" {
		t.Errorf("a refusal: %v, %v", r, err)
	}
	s, err := unmarshalStatus(new(writer).text("", `{"member":"hsm-a","token":"gw","state":"Down","signatures":5,"latencyMicros":{"p50":9},"lastError":"login: CKR_PIN_LOCKED (0xa4)"}`).b)
	if err != nil || s.Member != "hsm-a" || s.State != v1alpha1.HSMMemberDown || s.Signatures != 5 || s.Latency.P50 != 9 || s.Code() != PINLocked {
		t.Errorf("a status: %+v, %v, code %s", s, err, s.Code())
	}
}

func TestMalformedAnswersAreRefused(t *testing.T) {
	object := func(b []byte) error { _, err := unmarshalObject(b); return err }
	signature := func(b []byte) error { _, err := unmarshalSignature(b); return err }
	refusal := func(b []byte) error { _, err := unmarshalRefusal(b); return err }
	status := func(b []byte) error { _, err := unmarshalStatus(b); return err }
	nothing := func(b []byte) error { _, err := unmarshalNothing(b); return err }
	frames := func(b []byte) error { _, err := readFrame(bytes.NewReader(b)); return err }
	for name, c := range map[string]struct {
		read func([]byte) error
		b    string
		want string
	}{
		"an object without flags":         {object, "\x00\x01a", "the flags is cut off"},
		"an object that says more":        {object, "\x00\x09a", "the public key is cut off"},
		"an object with a tail":           {object, "\x00\x01a\x01\x01", "1 bytes too many"},
		"an empty object":                 {object, "", "cut off"},
		"an empty signature":              {signature, "\x00\x00", "the signature is empty"},
		"a refusal without a message":     {refusal, "12345678", "the message is cut off"},
		"a status that is no JSON":        {status, "\x00\x01{", "the status"},
		"a status in a state of its own":  {status, "\x00\x13{\"state\":\"Dormant\"}", `"Dormant"`},
		"an answer where none belongs":    {nothing, "x", "1 bytes too many"},
		"a frame that is too long":        {frames, "\x00\x01\x00\x01", "65537 bytes"},
		"a frame that is too short":       {frames, "\x00\x00\x00\x08", "8 bytes"},
		"a frame that ends in the middle": {frames, "\x00\x00\x00\x09\x00", "unexpected EOF"},
	} {
		if err := c.read([]byte(c.b)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
	if err := frames(nil); !errors.Is(err, io.EOF) {
		t.Errorf("the end between two frames: %v, want io.EOF", err)
	}
}

func TestWhatIsTooLongIsNotSent(t *testing.T) {
	if _, err := marshalSign(Key{Label: "web"}, MLDSA(""), make([]byte, 65536)); err == nil || !strings.Contains(err.Error(), "what is to be signed has 65536 bytes; at most 65535") {
		t.Errorf("data: %v", err)
	}
	if _, err := marshalKey(Key{Label: strings.Repeat("x", 65536)}); err == nil || !strings.Contains(err.Error(), "the label has 65536 bytes") {
		t.Errorf("a label: %v", err)
	}
}

// What a peer sends is read without a panic, with bounded memory, and what was
// read is what was written.
func FuzzAnswers(f *testing.F) {
	f.Add(frame{1, 0, []byte("\x00\x02\x30\x00\x05")}.marshal())
	f.Add(frame{1, 1, []byte("\x00\x00\x00\x00\x00\x00\x00\xa4\x00\x06locked")}.marshal())
	f.Add(frame{1, 0, []byte("\x00\x0e{\"state\":\"Up\"}")}.marshal())
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := readFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		if again := a.marshal(); !bytes.Equal(again, data[:len(again)]) {
			t.Errorf("%x was read, and is written as %x", data, again)
		}
		if o, err := unmarshalObject(a.body); err == nil && len(o.PublicKey)+3 != len(a.body) {
			t.Errorf("an object of %d bytes from a body of %d", len(o.PublicKey), len(a.body))
		}
		if r, err := unmarshalRefusal(a.body); err == nil {
			_ = r.Error()
		}
		if s, err := unmarshalStatus(a.body); err == nil {
			_ = s.Code()
		}
		_, _ = unmarshalSignature(a.body)
		_, _ = unmarshalNothing(a.body)
	})
}
