// Package tickets is the ring of session-ticket keys that the replicas of a
// gateway share: what it is, how it goes on, and how it is sealed for a store
// that is not trusted with it. It is pure.
//
// HAProxy has three keys: the last that was used, the one that encrypts, and
// the next one. Replicas that are one rotation apart still open each other's
// tickets. A ticket survives one rotation and ends with the second: it lives
// for one to two rotation periods.
package tickets

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"slices"
)

// KeySize is that of HAProxy's larger ticket keys, in bytes: a name of 16, an
// AES-256 key and an HMAC key of 32.
const KeySize = 80

// Key is a ticket key, or what ticket keys are derived from.
type Key [KeySize]byte

// String tells nothing: a key does not get into a log by accident.
func (k Key) String() string { return "[ticket key]" }

// GoString is String.
func (k Key) GoString() string { return k.String() }

// NewKey is random.
func NewKey() Key {
	var k Key
	_, _ = rand.Read(k[:]) // it never fails
	return k
}

// For derives the key of a scope (HKDF-SHA-512, RFC 5869). Who has no ticket of
// a scope has none of its keys': a session of one listener is not resumed on
// another.
func (k Key) For(scope string) Key {
	derived, err := hkdf.Key(sha512.New, k[:], nil, "qtls.dev session tickets v1 "+scope, KeySize)
	if err != nil {
		panic(err) // of a length that HKDF does not have
	}
	return Key(derived)
}

// Base64 is the form in which HAProxy takes a key.
func (k Key) Base64() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Size of a ring, in keys.
const Size = 3

// MostPeriods is for how many rotation periods the keys of a ring that nobody
// rotates may be used at most, by a replica or in a store: then they are older
// than any that still opens tickets.
const MostPeriods = 3

// Ring is three keys: old, encrypting, next.
type Ring struct {
	// Epoch is the number of the newest key, which encrypts after the next
	// rotation. The numbers of a ring only grow, and none is used twice.
	Epoch uint64
	Keys  [Size]Key
}

// New is a ring of new keys whose newest has the number epoch.
func New(epoch uint64) Ring {
	return Ring{Epoch: epoch, Keys: [Size]Key{NewKey(), NewKey(), NewKey()}}
}

// Next is the ring after a rotation, whose new key has the number epoch.
func (r Ring) Next(epoch uint64) Ring {
	return Ring{Epoch: epoch, Keys: [Size]Key{r.Keys[1], r.Keys[2], NewKey()}}
}

// For derives the keys of a scope.
func (r Ring) For(scope string) Ring {
	for i, k := range r.Keys {
		r.Keys[i] = k.For(scope)
	}
	return r
}

// File is HAProxy's file of these keys.
func (r Ring) File() []byte {
	var b bytes.Buffer
	for _, k := range r.Keys {
		b.WriteString(k.Base64() + "\n")
	}
	return b.Bytes()
}

// Pushes are the keys that bring HAProxy from one ring to another, in order:
// each push makes its key the next one. None where nothing differs.
func Pushes(from, to Ring) []Key {
	for n := range Size {
		if slices.Equal(from.Keys[n:], to.Keys[:Size-n]) {
			return to.Keys[Size-n:]
		}
	}
	return to.Keys[:]
}
