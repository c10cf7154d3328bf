package tickets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// WrappingKey encrypts the keys of rings in a store (AES-256-GCM). It is itself
// in a Secret.
type WrappingKey [32]byte

// String tells nothing.
func (k WrappingKey) String() string { return "[wrapping key]" }

// GoString is String.
func (k WrappingKey) GoString() string { return k.String() }

// NewWrappingKey is random, as is its name.
func NewWrappingKey() (name string, k WrappingKey) {
	_, _ = rand.Read(k[:])
	id := make([]byte, 8)
	_, _ = rand.Read(id)
	return hex.EncodeToString(id), k
}

// WrappingKeys are those there are, by name.
type WrappingKeys map[string]WrappingKey

// sealed is a ring as the store has it. All of it but the ciphertext is in the
// additional data: a document is of no use under another ring's name or number.
type sealed struct {
	Ring        string `json:"ring"`
	Epoch       uint64 `json:"epoch"`
	WrappingKey string `json:"wrappingKey"`
	Nonce       []byte `json:"nonce"`
	Ciphertext  []byte `json:"ciphertext"`
}

func (s sealed) additionalData() []byte {
	s.Nonce, s.Ciphertext = nil, nil
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return b
}

// Seal encrypts a ring for the store. Each call gives another document.
func Seal(r Ring, id, name string, k WrappingKey) []byte {
	aead := newAEAD(k)
	s := sealed{Ring: id, Epoch: r.Epoch, WrappingKey: name, Nonce: make([]byte, aead.NonceSize())}
	_, _ = rand.Read(s.Nonce)
	var plain []byte
	for _, key := range r.Keys {
		plain = append(plain, key[:]...)
	}
	s.Ciphertext = aead.Seal(nil, s.Nonce, plain, s.additionalData())
	clear(plain)
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // bytes, strings and numbers always encode
	}
	return b
}

// What is wrong with a document.
var (
	// ErrWrappingKey: the key that it names is not there (yet).
	ErrWrappingKey = errors.New("it is sealed under a wrapping key that is not known here")
	// ErrDamaged: it was cut, changed, or is another ring's.
	ErrDamaged = errors.New("it is damaged, or another ring's")
	// ErrDropped: it is older than what may still be used.
	ErrDropped = errors.New("its keys were dropped, or are older than those in use")
)

// Open decrypts a document of the store. A ring whose newest key has a number
// below least is refused.
func Open(document []byte, id string, keys WrappingKeys, least uint64) (Ring, error) {
	var s sealed
	if err := json.Unmarshal(document, &s); err != nil || s.Ring != id {
		return Ring{}, fmt.Errorf("ring %s: %w", id, ErrDamaged)
	}
	if s.Epoch < least {
		return Ring{}, fmt.Errorf("ring %s, epoch %d: %w", id, s.Epoch, ErrDropped)
	}
	k, ok := keys[s.WrappingKey]
	if !ok {
		return Ring{}, fmt.Errorf("ring %s, epoch %d: %w", id, s.Epoch, ErrWrappingKey)
	}
	aead := newAEAD(k)
	if len(s.Nonce) != aead.NonceSize() {
		return Ring{}, fmt.Errorf("ring %s, epoch %d: %w", id, s.Epoch, ErrDamaged)
	}
	plain, err := aead.Open(nil, s.Nonce, s.Ciphertext, s.additionalData())
	if err != nil || len(plain) != Size*KeySize {
		return Ring{}, fmt.Errorf("ring %s, epoch %d: %w", id, s.Epoch, ErrDamaged)
	}
	r := Ring{Epoch: s.Epoch}
	for i := range r.Keys {
		copy(r.Keys[i][:], plain[i*KeySize:])
	}
	clear(plain)
	return r, nil
}

func newAEAD(k WrappingKey) cipher.AEAD {
	block, err := aes.NewCipher(k[:])
	if err == nil {
		var aead cipher.AEAD
		if aead, err = cipher.NewGCM(block); err == nil {
			return aead
		}
	}
	panic(err) // of a length that AES does not have
}

// MarshalText is base64: a wrapping key travels in Secrets.
func (k WrappingKey) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, k[:]), nil
}

// UnmarshalText takes what MarshalText made, and nothing of another length.
func (k *WrappingKey) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(b) != len(k) {
		return fmt.Errorf("a wrapping key is %d bytes in base64", len(k)) // never the text
	}
	copy(k[:], b)
	return nil
}
