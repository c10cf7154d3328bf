package request

import (
	"crypto/x509"
	"fmt"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/pki"
)

// leastDuration of a certificate, as cert-manager has it for its own.
const leastDuration = 5 * time.Minute

// keysOf says in words what keys a family has.
var keysOf = map[algorithms.Family]string{
	algorithms.PostQuantum: "a post-quantum",
	algorithms.Classical:   "an ECDSA or RSA",
}

// orderOf reads what a CertificateRequest asks for: nothing but its approved
// spec decides.
func orderOf(cr *cmapi.CertificateRequest) (pki.Order, error) {
	order := pki.Order{IsCA: cr.Spec.IsCA, Duration: cmapi.DefaultCertificateDuration}
	var err error
	if carried := cr.Annotations[v1alpha1.AnnotationRequest]; carried != "" {
		order.Request, err = pki.OpenCarrier(cr.Spec.Request, []byte(carried))
	} else {
		order.Request, err = pki.ParseRequest(cr.Spec.Request)
	}
	if err != nil {
		return order, err
	}
	if cr.Spec.Duration != nil {
		order.Duration = cr.Spec.Duration.Duration
	}
	if order.Duration < leastDuration {
		return order, fmt.Errorf("spec.duration %s: at least %s", order.Duration, leastDuration)
	}
	order.KeyUsage, order.ExtKeyUsage, err = usagesOf(cr.Spec.Usages)
	return order, err
}

var keyUsages = map[cmapi.KeyUsage]x509.KeyUsage{
	cmapi.UsageSigning:           x509.KeyUsageDigitalSignature,
	cmapi.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	cmapi.UsageContentCommitment: x509.KeyUsageContentCommitment,
	cmapi.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	cmapi.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	cmapi.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	cmapi.UsageCertSign:          x509.KeyUsageCertSign,
	cmapi.UsageCRLSign:           x509.KeyUsageCRLSign,
	cmapi.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	cmapi.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extKeyUsages = map[cmapi.KeyUsage]x509.ExtKeyUsage{
	cmapi.UsageAny:             x509.ExtKeyUsageAny,
	cmapi.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	cmapi.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	cmapi.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	cmapi.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	cmapi.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	cmapi.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	cmapi.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	cmapi.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	cmapi.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	cmapi.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	cmapi.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	cmapi.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// usagesOf sorts cert-manager's usages into those of the key and the extended
// ones. Without any, cert-manager's defaults hold.
func usagesOf(names []cmapi.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage, error) {
	if len(names) == 0 {
		names = cmapi.DefaultKeyUsages()
	}
	var usage x509.KeyUsage
	var extended []x509.ExtKeyUsage
	seen := map[x509.ExtKeyUsage]bool{}
	for _, name := range names {
		if u, ok := keyUsages[name]; ok {
			usage |= u
		} else if e, ok := extKeyUsages[name]; !ok {
			return 0, nil, fmt.Errorf("spec.usages: %q is not a usage", name)
		} else if !seen[e] {
			seen[e] = true
			extended = append(extended, e)
		}
	}
	return usage, extended, nil
}
