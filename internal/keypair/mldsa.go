package keypair

import (
	"crypto/mldsa"
	"crypto/x509/pkix"
	"encoding/asn1"
)

// seedOnly turns the form of an ML-DSA private key that OpenSSL writes by
// default, the seed and the expanded key side by side (RFC 9881, section 6,
// `both`), into the form with the seed alone, which crypto/x509 reads. The
// expanded key follows from the seed; whether that is the certificate's is
// seen by the public key, which follows from it too. Every other PKCS #8
// structure is returned as it is.
func seedOnly(der []byte) []byte {
	var key struct {
		Version    int
		Algorithm  pkix.AlgorithmIdentifier
		PrivateKey []byte
		Attributes asn1.RawValue `asn1:"optional,tag:0"`
	}
	var both struct{ Seed, Expanded []byte }
	if rest, err := asn1.Unmarshal(der, &key); err != nil || len(rest) > 0 || !isMLDSA(key.Algorithm.Algorithm) {
		return der
	}
	if rest, err := asn1.Unmarshal(key.PrivateKey, &both); err != nil || len(rest) > 0 || len(both.Seed) != mldsa.PrivateKeySize {
		return der
	}
	const seedTag = 0x80 // [0] IMPLICIT OCTET STRING
	key.PrivateKey = append([]byte{seedTag, mldsa.PrivateKeySize}, both.Seed...)
	out, err := asn1.Marshal(struct {
		Version    int
		Algorithm  pkix.AlgorithmIdentifier
		PrivateKey []byte
	}{key.Version, key.Algorithm, key.PrivateKey})
	if err != nil {
		return der
	}
	return out
}

// isMLDSA says whether an OID is id-ml-dsa-44, -65 or -87 (FIPS 204).
func isMLDSA(oid asn1.ObjectIdentifier) bool {
	const last = 8
	return len(oid) == last+1 && oid[:last].Equal(asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3}) && oid[last] >= 17 && oid[last] <= 19
}
