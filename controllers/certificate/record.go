package certificate

import (
	"crypto/x509"
	"encoding/json"
	"net"
	"slices"
	"strings"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/pki"
)

// record is what a PQCCertificate asks of one certificate. It is kept with
// everything that is made for it, so that a change of the spec is seen by
// comparing, whatever an issuer made of it.
type record struct {
	CommonName  string   `json:"commonName,omitempty"`
	DNSNames    []string `json:"dnsNames,omitempty"`
	IPAddresses []string `json:"ipAddresses,omitempty"`
	IsCA        bool     `json:"isCA,omitempty"`
	// Usages in order; nil: a server's alone, or a CA's.
	Usages   []v1alpha1.CertificateUsage `json:"usages,omitempty"`
	Duration metav1.Duration             `json:"duration"`
	Issuer   v1alpha1.IssuerReference    `json:"issuerRef"`
	// HSM is the HSMPool that the key lies in; empty: it lies in the Secret.
	HSM string `json:"hsm,omitempty"`
	// Key is the label of the key there that is to be used; empty: one is made.
	Key string `json:"key,omitempty"`
	// Renew is the value of the annotation qtls.dev/renew.
	Renew string `json:"renew,omitempty"`
	// Maker is the UID of the PQCCertificate that the key was made for in an HSM;
	// empty where none was made, or nobody recorded for whom. A Secret that comes
	// from a backup names a key that the object of before, perhaps in another
	// cluster, may still use: nobody but its maker destroys it.
	Maker types.UID `json:"maker,omitempty"`
	// Kept says that the key of a revision under way is the authority's own: who
	// deletes the certificate's Secret meanwhile wants another.
	Kept bool `json:"kept,omitempty"`
	// Repair says that a revision replaces what somebody else made of the Secret, or
	// a key that its HSMs lost.
	Repair bool `json:"repair,omitempty"`
	// Issued is when the certificate came: what renewal counts from.
	Issued *metav1.Time `json:"issued,omitempty"`
}

// recordOf reads what a PQCCertificate asks for.
func recordOf(c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm) record {
	r := record{
		CommonName: c.Spec.CommonName,
		IsCA:       c.Spec.IsCA,
		Duration:   metav1.Duration{Duration: defaultDuration},
		Issuer:     c.Spec.IssuerRef,
		Renew:      c.Annotations[v1alpha1.AnnotationRenew],
	}
	if ref := c.Spec.KeyStorage.HSMRef; ref != nil {
		r.HSM = ref.Name
	}
	for _, k := range c.Spec.KeyStorage.ExistingKeys {
		if k.Algorithm == algorithm {
			r.Key = k.Label
		}
	}
	if c.Spec.Duration != nil {
		r.Duration = *c.Spec.Duration
	}
	if usages := slices.Sorted(slices.Values(c.Spec.Usages)); !slices.Equal(usages, []v1alpha1.CertificateUsage{v1alpha1.UsageServerAuth}) {
		r.Usages = usages
	}
	for _, n := range c.Spec.DNSNames {
		r.DNSNames = append(r.DNSNames, string(n))
	}
	for _, a := range c.Spec.IPAddresses {
		r.IPAddresses = append(r.IPAddresses, net.ParseIP(a).String()) // the API admits nothing else
	}
	slices.Sort(r.DNSNames)
	slices.Sort(r.IPAddresses)
	r.IPAddresses = slices.Compact(r.IPAddresses) // ::1 and 0::1
	return r
}

// parseRecord reads an annotation's value. One that does not parse is empty,
// and thus differs from whatever is asked for.
func parseRecord(value string) record {
	var r record
	if json.Unmarshal([]byte(value), &r) != nil {
		return record{}
	}
	return r
}

func (r record) String() string {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings, numbers and times always marshal
	}
	return string(data)
}

// changes names the fields of the spec in which what is wanted differs from r.
func (r record) changes(want record) []string {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"commonName", r.CommonName == want.CommonName},
		{"dnsNames", slices.Equal(r.DNSNames, want.DNSNames)},
		{"ipAddresses", slices.Equal(r.IPAddresses, want.IPAddresses)},
		{"isCA", r.IsCA == want.IsCA},
		{"usages", slices.Equal(r.Usages, want.Usages)},
		{"duration", r.Duration == want.Duration},
		{"issuerRef", r.Issuer == want.Issuer},
		{"keyStorage", r.HSM == want.HSM && r.Key == want.Key},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// fulfils says whether what was asked with r is what is wanted. To take the
// annotation qtls.dev/renew away asks for nothing.
func (r record) fulfils(want record) bool {
	return len(r.changes(want)) == 0 && (want.Renew == "" || r.Renew == want.Renew)
}

// keyUsages are those that a CertificateRequest asks for.
func (r record) keyUsages() []cmapi.KeyUsage {
	if r.IsCA {
		return []cmapi.KeyUsage{cmapi.UsageCertSign, cmapi.UsageCRLSign}
	}
	usages := []cmapi.KeyUsage{cmapi.UsageDigitalSignature}
	if r.isFor(v1alpha1.UsageServerAuth) {
		usages = append(usages, cmapi.UsageServerAuth)
	}
	if r.isFor(v1alpha1.UsageClientAuth) {
		usages = append(usages, cmapi.UsageClientAuth)
	}
	return usages
}

// extendedUsages are those of them that a certificate has to be good for.
func (r record) extendedUsages() []x509.ExtKeyUsage {
	var usages []x509.ExtKeyUsage
	if r.isFor(v1alpha1.UsageServerAuth) {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if r.isFor(v1alpha1.UsageClientAuth) {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	return usages
}

func (r record) isFor(usage v1alpha1.CertificateUsage) bool {
	if len(r.Usages) == 0 {
		return !r.IsCA && usage == v1alpha1.UsageServerAuth
	}
	return slices.Contains(r.Usages, usage)
}

func (r record) names() pki.Names {
	n := pki.Names{CommonName: r.CommonName, DNSNames: r.DNSNames}
	for _, a := range r.IPAddresses {
		n.IPAddresses = append(n.IPAddresses, net.ParseIP(a))
	}
	return n
}

// issuer in words, as in `PQCIssuer "root"`.
func (r record) issuer() string {
	kind := r.Issuer.Kind
	if r.Issuer.Group != v1alpha1.GroupName {
		kind += "." + r.Issuer.Group
	}
	return strings.TrimSpace(kind + ` "` + r.Issuer.Name + `"`)
}
