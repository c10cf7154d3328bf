package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// ObjectName is a name that objects of Kubernetes have, as DNS has names, in lower
// case: a reference with another one stands for nothing, and cannot be asked for.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
type ObjectName = string

// CertificateSecretName is the name of the Secret that holds the certificate
// of one algorithm of a PQCCertificate, such as web-ml-dsa-65 or
// web-p384-haetae3.
func CertificateSecretName(certificate string, algorithm KeyAlgorithm) string {
	return certificate + "-" + strings.ReplaceAll(strings.ToLower(string(algorithm)), "_", "-")
}

// LabelValue makes a label's value of an object's name: the name itself, or,
// when it has more than the 63 characters that a label may have, its beginning
// and a hash of it.
func LabelValue(name string) string {
	const most, hashed = 63, 10
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:most-1-hashed] + "-" + hex.EncodeToString(sum[:])[:hashed]
}
