package hsm

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/mldsa"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
)

// Signer is a private key that one token holds, or several. It is a
// crypto.Signer of RSA, ECDSA and ML-DSA keys.
type Signer struct {
	// Object is the key as the first member shows it that answered.
	Object Object

	ctx     context.Context // of its maker: crypto.Signer has none
	key     Key
	public  crypto.PublicKey
	members []*Client
}

// NewSigner finds the key. Members are asked in order, for the key and for each
// signature, until one can; ctx bounds both.
func NewSigner(ctx context.Context, key Key, members ...*Client) (*Signer, error) {
	object, err := first(members, func(c *Client) (Object, error) { return c.Find(ctx, key) })
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", key, err)
	}
	return SignerOf(ctx, key, object, members...)
}

// SignerOf is NewSigner for a key that was found already.
func SignerOf(ctx context.Context, key Key, object Object, members ...*Client) (*Signer, error) {
	public, err := x509.ParsePKIXPublicKey(object.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("key %s: its public key does not parse: %w", key, err)
	}
	return &Signer{Object: object, ctx: ctx, key: key, public: public, members: members}, nil
}

// With another context for the signatures to come.
func (s *Signer) With(ctx context.Context) *Signer {
	other := *s
	other.ctx = ctx
	return &other
}

// Public key.
func (s *Signer) Public() crypto.PublicKey { return s.public }

// Sign a digest, or with an ML-DSA key and no hash a message. Randomness is the
// token's own.
func (s *Signer) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	mechanism, data, err := prepare(s.public, digest, opts)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", s.key, err)
	}
	signature, err := first(s.members, func(c *Client) ([]byte, error) { return c.Sign(s.ctx, s.key, mechanism, data) })
	if err == nil {
		signature, err = encode(s.public, signature)
	}
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", s.key, err)
	}
	return signature, nil
}

// first result of the members, in order. A request that every member would
// refuse is made once.
func first[T any](members []*Client, ask func(*Client) (T, error)) (T, error) {
	var none T
	if len(members) == 0 {
		return none, errors.New("no HSM to ask")
	}
	var failed error
	for _, c := range members {
		result, err := ask(c)
		if err == nil {
			return result, nil
		}
		if failed == nil {
			failed = err
		} else {
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		if RequestAtFault(err) {
			break
		}
	}
	return none, failed
}

// prepare says what a token does for crypto.Signer.Sign.
func prepare(public crypto.PublicKey, digest []byte, opts crypto.SignerOpts) (Mechanism, []byte, error) {
	hash := opts.HashFunc()
	if _, ok := public.(*mldsa.PublicKey); ok {
		if hash != 0 {
			return Mechanism{}, nil, fmt.Errorf("ML-DSA signs messages here, not what %s made of them", hash)
		}
		var context string
		if o, ok := opts.(*mldsa.Options); ok {
			context = o.Context
		}
		return MLDSA(context), digest, nil
	}
	numbers, ok := hashes[hash]
	if !ok {
		return Mechanism{}, nil, errors.New("the hash is none of SHA-256, SHA-384 and SHA-512")
	}
	if len(digest) != hash.Size() {
		return Mechanism{}, nil, fmt.Errorf("a digest of %d bytes is not of %s", len(digest), hash)
	}
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		// What is longer than the curve's order is cut (FIPS 186-5, section
		// 6.4.1); some tokens refuse it.
		return ECDSA(), digest[:min(len(digest), k.Curve.Params().N.BitLen()/8)], nil
	case *rsa.PublicKey:
		if o, ok := opts.(*rsa.PSSOptions); ok {
			salt, err := saltLength(k, o.SaltLength, hash)
			return RSAPSS(numbers.mechanism, numbers.mgf, salt), digest, err
		}
		info, err := asn1.Marshal(digestInfo{pkix.AlgorithmIdentifier{Algorithm: numbers.oid, Parameters: asn1.NullRawValue}, digest})
		return RSAPKCS1(), info, err
	}
	return Mechanism{}, nil, fmt.Errorf("keys of type %T are not supported", public)
}

// hashes with PKCS #11's numbers for them.
var hashes = map[crypto.Hash]struct {
	mechanism, mgf uint64
	oid            asn1.ObjectIdentifier
}{
	crypto.SHA256: {0x250, 2, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}},
	crypto.SHA384: {0x260, 3, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 2}},
	crypto.SHA512: {0x270, 4, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 3}},
}

// digestInfo is what PKCS #1 v1.5 signs (RFC 8017, section 9.2).
type digestInfo struct {
	Algorithm pkix.AlgorithmIdentifier
	Digest    []byte
}

func saltLength(k *rsa.PublicKey, asked int, hash crypto.Hash) (uint64, error) {
	longest := (k.N.BitLen()-1+7)/8 - 2 - hash.Size() // RFC 8017, section 9.1.1
	switch asked {
	case rsa.PSSSaltLengthAuto:
		asked = longest
	case rsa.PSSSaltLengthEqualsHash:
		asked = hash.Size()
	}
	if asked < 0 || asked > longest {
		return 0, fmt.Errorf("a salt of %d bytes: an RSA key of %d bits has room for %d", asked, k.N.BitLen(), longest)
	}
	return uint64(asked), nil
}

// encode a token's signature as crypto.Signer has it.
func encode(public crypto.PublicKey, signature []byte) ([]byte, error) {
	k, ok := public.(*ecdsa.PublicKey)
	if !ok {
		return signature, nil
	}
	half := (k.Curve.Params().N.BitLen() + 7) / 8
	if len(signature) != 2*half {
		return nil, fmt.Errorf("the token's ECDSA signature has %d bytes; %d belong there", len(signature), 2*half)
	}
	return asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(signature[:half]), new(big.Int).SetBytes(signature[half:])})
}
