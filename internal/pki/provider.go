package pki

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
)

// crypto/x509 has none of the provider's algorithms. It still makes all that is
// signed, for a key of its own that stands in: then the key and the signature's
// algorithm are replaced, and OpenSSL signs.

// standIn is a key for crypto/x509 to make what is replaced then.
func standIn() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return key, err
}

// signedContent is the form of certificates and of certificate requests.
type signedContent struct {
	Content   asn1.RawValue
	Algorithm pkix.AlgorithmIdentifier
	Signature asn1.BitString
}

// Places in the content of a certificate, and of a request, counted from 0.
const (
	certificateAlgorithm = 2
	certificateKey       = 6
	requestKey           = 2
)

// resign replaces parts of what is signed, by their places, and signs it anew.
func resign(der []byte, parts map[int][]byte, algorithm pkix.AlgorithmIdentifier, key crypto.Signer) ([]byte, error) {
	var whole signedContent
	if _, err := asn1.Unmarshal(der, &whole); err != nil {
		return nil, err
	}
	var content []byte
	rest := whole.Content.Bytes
	for i := 0; len(rest) > 0; i++ {
		var part asn1.RawValue
		var err error
		if rest, err = asn1.Unmarshal(rest, &part); err != nil {
			return nil, err
		}
		if other, ok := parts[i]; ok {
			part.FullBytes = other
		}
		content = append(content, part.FullBytes...)
	}
	content, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: content})
	if err != nil {
		return nil, err
	}
	signature, err := signMessage(key, content)
	if err != nil {
		return nil, err
	}
	return asn1.Marshal(signedContent{asn1.RawValue{FullBytes: content}, algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}})
}

// signMessage with a post-quantum key, OpenSSL's or Go's.
func signMessage(key crypto.Signer, message []byte) ([]byte, error) {
	if _, ok := key.(*keypair.ProviderKey); !ok {
		return key.Sign(rand.Reader, message, crypto.Hash(0))
	}
	data, err := keypair.MarshalKey(key)
	if err != nil {
		return nil, err
	}
	return openssl.Sign(data, message)
}

// generateProviderKey makes a key of one of the provider's algorithms.
func generateProviderKey(a algorithms.KeyAlgorithm) (crypto.Signer, error) {
	data, err := openssl.GenerateKey(string(a.Name))
	if err != nil {
		return nil, err
	}
	return keypair.ParseKey(data)
}

// identifier of an algorithm of the provider's.
func identifier(a algorithms.KeyAlgorithm) (pkix.AlgorithmIdentifier, error) {
	var oid asn1.ObjectIdentifier
	for part := range strings.SplitSeq(a.Provider.OID, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return pkix.AlgorithmIdentifier{}, fmt.Errorf("algorithm %s: the object identifier %q does not parse", a.Name, a.Provider.OID)
		}
		oid = append(oid, n)
	}
	return pkix.AlgorithmIdentifier{Algorithm: oid}, nil
}

// publicKeyInfo is a key's SubjectPublicKeyInfo in DER form.
func publicKeyInfo(public crypto.PublicKey) ([]byte, error) {
	k, ok := public.(*keypair.ProviderPublicKey)
	if !ok {
		return x509.MarshalPKIXPublicKey(public)
	}
	algorithm, err := identifier(k.Algorithm)
	if err != nil {
		return nil, err
	}
	return asn1.Marshal(struct {
		Algorithm pkix.AlgorithmIdentifier
		PublicKey asn1.BitString
	}{algorithm, asn1.BitString{Bytes: k.Bytes, BitLength: 8 * len(k.Bytes)}})
}

// createProviderRequest makes a request for a key of the provider's.
func createProviderRequest(key *keypair.ProviderKey, template *x509.CertificateRequest) ([]byte, error) {
	other, err := standIn()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, other)
	if err != nil {
		return nil, err
	}
	public := key.Public().(*keypair.ProviderPublicKey)
	info, err := publicKeyInfo(public)
	if err != nil {
		return nil, err
	}
	algorithm, err := identifier(public.Algorithm)
	if err != nil {
		return nil, err
	}
	return resign(der, map[int][]byte{requestKey: info}, algorithm, key)
}

// createWithProvider makes a certificate whose key, or whose issuer's, is the
// provider's.
func createWithProvider(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	subject, err := standIn()
	if err != nil {
		return nil, err
	}
	issuer, above := key, *parent
	parts := map[int][]byte{}
	if k, ok := key.(*keypair.ProviderKey); ok {
		issuer, above.PublicKey = subject, subject.Public()
		algorithm, err := identifier(k.Public().(*keypair.ProviderPublicKey).Algorithm)
		if err != nil {
			return nil, err
		}
		if parts[certificateAlgorithm], err = asn1.Marshal(algorithm); err != nil {
			return nil, err
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, &above, subject.Public(), issuer)
	if err != nil {
		return nil, err
	}
	if parts[certificateKey], err = publicKeyInfo(public); err != nil {
		return nil, err
	}
	var made signedContent
	if _, err := asn1.Unmarshal(der, &made); err != nil {
		return nil, err
	}
	algorithm := made.Algorithm
	if replaced, ok := parts[certificateAlgorithm]; ok {
		algorithm = pkix.AlgorithmIdentifier{}
		if _, err := asn1.Unmarshal(replaced, &algorithm); err != nil {
			return nil, err
		}
	}
	return resign(der, parts, algorithm, key)
}

// checkSignature checks what a key of the provider's signed, a certificate or a
// request.
func checkSignature(der []byte, by *keypair.ProviderPublicKey) error {
	var whole signedContent
	if rest, err := asn1.Unmarshal(der, &whole); err != nil || len(rest) > 0 {
		return errors.New("it does not parse")
	}
	if oid := whole.Algorithm.Algorithm.String(); oid != by.Algorithm.Provider.OID {
		return fmt.Errorf("its signature's algorithm, %s, is not that of the key, %s", oid, by.Algorithm.Name)
	}
	info, err := publicKeyInfo(by)
	if err != nil {
		return err
	}
	return openssl.Verify(info, whole.Content.FullBytes, whole.Signature.RightAlign())
}

// signedBy says whether a certificate is signed with another's key. Its error is
// openssl.ErrUnavailable.
func signedBy(c, issuer *x509.Certificate) (bool, error) {
	k, ok := issuer.PublicKey.(*keypair.ProviderPublicKey)
	if !ok {
		return c.CheckSignatureFrom(issuer) == nil, nil
	}
	if !issuer.IsCA || issuer.KeyUsage != 0 && issuer.KeyUsage&x509.KeyUsageCertSign == 0 { // what CheckSignatureFrom checks
		return false, nil
	}
	err := checkSignature(c.Raw, k)
	if errors.Is(err, openssl.ErrUnavailable) {
		return false, err
	}
	return err == nil, nil
}

// purposes are OpenSSL's words for what a chain is to be good for; without one it
// is not asked.
var purposes = map[x509.ExtKeyUsage]string{
	x509.ExtKeyUsageServerAuth: "sslserver",
	x509.ExtKeyUsageClientAuth: "sslclient",
}

// verifyWithProvider is x509.Certificate.Verify by OpenSSL.
func verifyWithProvider(chain Chain, authorities []*x509.Certificate, usage x509.ExtKeyUsage, at time.Time) error {
	return openssl.VerifyChain(CertificatesPEM(chain.Leaf()), CertificatesPEM(chain.Certificates[1:]...), CertificatesPEM(authorities...), purposes[usage], at)
}
