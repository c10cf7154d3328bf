package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
)

// groupIDs are the groups by the names of IANA's TLS Supported Groups registry, as written by OpenSSL. A release of Go
// leaves out those that it does not have.
var groupIDs = map[string]tls.CurveID{
	"X25519": 0x001d, "P-256": 0x0017, "P-384": 0x0018, "P-521": 0x0019,
	"X25519MLKEM768": 0x11ec, "SecP256r1MLKEM768": 0x11eb, "SecP384r1MLKEM1024": 0x11ed,
	"MLKEM512": 0x0200, "MLKEM768": 0x0201, "MLKEM1024": 0x0202,
}

func groupName(id uint16) string {
	for name, known := range groupIDs {
		if uint16(known) == id {
			return name
		}
	}
	return fmt.Sprintf("0x%04x", id)
}

// schemeNames are those of IANA's TLS SignatureScheme registry.
var schemeNames = map[uint16]string{
	0x0201: "rsa_pkcs1_sha1", 0x0203: "ecdsa_sha1",
	0x0401: "rsa_pkcs1_sha256", 0x0501: "rsa_pkcs1_sha384", 0x0601: "rsa_pkcs1_sha512",
	0x0403: "ecdsa_secp256r1_sha256", 0x0503: "ecdsa_secp384r1_sha384", 0x0603: "ecdsa_secp521r1_sha512",
	0x0804: "rsa_pss_rsae_sha256", 0x0805: "rsa_pss_rsae_sha384", 0x0806: "rsa_pss_rsae_sha512",
	0x0807: "ed25519", 0x0808: "ed448",
	0x0809: "rsa_pss_pss_sha256", 0x080a: "rsa_pss_pss_sha384", 0x080b: "rsa_pss_pss_sha512",
	0x0904: "mldsa44", 0x0905: "mldsa65", 0x0906: "mldsa87",
}

func schemeName(id uint16) string {
	if name, known := schemeNames[id]; known {
		return name
	}
	return fmt.Sprintf("0x%04x", id)
}

// keyAlgorithms are those of a SubjectPublicKeyInfo, by OID: a release of Go may lack the algorithm and still say which
// one it is.
var keyAlgorithms = map[string]string{
	"1.2.840.113549.1.1.1":    "RSA",
	"1.2.840.10045.2.1":       "ECDSA",
	"1.3.101.112":             "Ed25519",
	"2.16.840.1.101.3.4.3.17": "ML-DSA-44",
	"2.16.840.1.101.3.4.3.18": "ML-DSA-65",
	"2.16.840.1.101.3.4.3.19": "ML-DSA-87",
}

var curves = map[string]string{"1.2.840.10045.3.1.7": "P256", "1.3.132.0.34": "P384", "1.3.132.0.35": "P521"}

// keyAlgorithm is the algorithm of a certificate's key, such as ECDSA-P256, RSA-2048 or ML-DSA-65.
func keyAlgorithm(c *x509.Certificate) string {
	var info struct {
		Algorithm struct {
			OID        asn1.ObjectIdentifier
			Parameters asn1.RawValue `asn1:"optional"`
		}
		Key asn1.BitString
	}
	if _, err := asn1.Unmarshal(c.RawSubjectPublicKeyInfo, &info); err != nil {
		return "unreadable"
	}
	oid := info.Algorithm.OID.String()
	name, known := keyAlgorithms[oid]
	switch {
	case !known:
		return oid
	case name == "ECDSA":
		var curve asn1.ObjectIdentifier
		_, _ = asn1.Unmarshal(info.Algorithm.Parameters.FullBytes, &curve) // an unreadable curve has no name
		return name + "-" + curves[curve.String()]
	case name == "RSA":
		if key, ok := c.PublicKey.(interface{ Size() int }); ok {
			return fmt.Sprintf("%s-%d", name, 8*key.Size())
		}
	}
	return name
}
