// Package issuers holds what PQCIssuer and PQCClusterIssuer have in common:
// the same spec and status, and the authorities that their Secrets hold.
package issuers

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/pki"
)

// The two kinds.
const (
	Kind        = "PQCIssuer"
	ClusterKind = "PQCClusterIssuer"
)

// New makes an empty object of a kind; nil if it is not an issuer's.
func New(kind string) client.Object {
	switch kind {
	case Kind:
		return &v1alpha1.PQCIssuer{}
	case ClusterKind:
		return &v1alpha1.PQCClusterIssuer{}
	}
	return nil
}

// Parts are an issuer's spec and status.
func Parts(issuer client.Object) (*v1alpha1.IssuerSpec, *v1alpha1.IssuerStatus) {
	switch i := issuer.(type) {
	case *v1alpha1.PQCIssuer:
		return &i.Spec, &i.Status
	case *v1alpha1.PQCClusterIssuer:
		return &i.Spec, &i.Status
	}
	panic(fmt.Sprintf("%T is not an issuer", issuer))
}

// RefusesAuthorities says why an issuer signs no certificate of an authority; nil
// if it does. One that a request's own key signs stands for nobody else's.
func RefusesAuthorities(issuer client.Object) error {
	spec, _ := Parts(issuer)
	if spec.CA == nil {
		return nil
	}
	kind, has, is := Kind, spec.CA.SubordinateAuthorities, string(spec.CA.SubordinateAuthorities)
	if _, cluster := issuer.(*v1alpha1.PQCClusterIssuer); cluster {
		kind = ClusterKind
	}
	if has == "" && kind == ClusterKind {
		has, is = v1alpha1.SubordinatesRefuse, "not set, which stands for "+string(v1alpha1.SubordinatesRefuse)
	}
	if has != v1alpha1.SubordinatesRefuse {
		return nil
	}
	return fmt.Errorf("%s %q signs no certificates of authorities (isCA): its spec.ca.subordinateAuthorities is %s; name a PQCIssuer with authorities of the namespace's own, or set it to %s",
		kind, issuer.GetName(), is, v1alpha1.SubordinatesAllow)
}

// SecretNames are the Secrets that an issuer's spec names.
func SecretNames(issuer client.Object) []string {
	spec, _ := Parts(issuer)
	if spec.CA == nil {
		return nil
	}
	var names []string
	for _, ref := range spec.CA.SecretRefs {
		names = append(names, ref.Name)
	}
	return names
}

// SecretNamespace is where an issuer's Secrets lie, given the operator's
// namespace.
func SecretNamespace(issuer client.Object, operators string) string {
	if n := issuer.GetNamespace(); n != "" {
		return n
	}
	return operators
}

// Authority is an authority and the Secret that holds it.
type Authority struct {
	SecretName string
	// HSMPool that the key lies in; empty: it lies in the Secret.
	HSMPool string
	*pki.Authority
}

// Authorities of a CA issuer.
type Authorities struct {
	// List of those that are sound, in the spec's order: at most one of each
	// family.
	List []Authority
	// Problems of the others.
	Problems []*conditions.Problem
}

// For finds the authority of a family.
func (a Authorities) For(family algorithms.Family) (Authority, bool) {
	for _, authority := range a.List {
		if authority.Family == family {
			return authority, true
		}
	}
	return Authority{}, false
}

// Load reads the authorities of a CA issuer, whose Secrets and HSMPools lie in
// the namespace of the keys. An error is one of reading, not of what was read.
func Load(ctx context.Context, keys hsmpool.Keys, ca *v1alpha1.CAIssuer, now time.Time) (Authorities, error) {
	secrets := map[string]*corev1.Secret{}
	for _, ref := range ca.SecretRefs {
		if len(content.IsPathSegmentName(ref.Name)) > 0 {
			continue // an earlier release let such a name through, and the API does not let one ask for it
		}
		secret := &corev1.Secret{}
		err := keys.Secrets.Get(ctx, client.ObjectKey{Namespace: keys.Namespace, Name: ref.Name}, secret)
		switch {
		case err == nil:
			secrets[ref.Name] = secret
		case !apierrors.IsNotFound(err):
			return Authorities{}, fmt.Errorf("Secret %s/%s: %w", keys.Namespace, ref.Name, err)
		}
	}
	find := func(r keypair.Reference) (crypto.Signer, error) { return keys.Find(ctx, r) }
	return assemble(keys.Namespace, ca, secrets, find, now)
}

// assemble makes authorities of the Secrets that there are. It is pure, but for
// what finds the keys that lie in HSMs.
func assemble(namespace string, ca *v1alpha1.CAIssuer, secrets map[string]*corev1.Secret, find finder, now time.Time) (Authorities, error) {
	var all Authorities
	var sound []Authority
	holders := map[algorithms.Family][]string{}
	for _, ref := range ca.SecretRefs {
		authority, err := parse(namespace, ref.Name, ca.HSMRef, secrets[ref.Name], find, now)
		if problem, ok := conditions.AsProblem(err); ok {
			all.Problems = append(all.Problems, problem)
			continue
		} else if err != nil {
			return Authorities{}, err
		}
		sound = append(sound, authority)
		holders[authority.Family] = append(holders[authority.Family], ref.Name)
	}
	for _, authority := range sound {
		names := holders[authority.Family]
		if len(names) == 1 {
			all.List = append(all.List, authority)
		} else if names[0] == authority.SecretName { // once for the family
			all.Problems = append(all.Problems, &conditions.Problem{Reason: v1alpha1.ReasonSameFamily, Message: fmt.Sprintf(
				"spec.ca.secretRefs: Secrets %q and %q hold authorities of the same family (%s), and which one should sign is not clear; name at most one of each family",
				names[0], names[1], authority.Family)})
		}
	}
	return all, nil
}

// finder of a key in an HSMPool. What is wrong there is a *conditions.Problem.
type finder func(keypair.Reference) (crypto.Signer, error)

// parse finds an authority in a Secret, whose key has to be in a pool if one is named,
// or the *conditions.Problem with it.
func parse(namespace, name string, in *v1alpha1.HSMPoolReference, secret *corev1.Secret, find finder, now time.Time) (Authority, error) {
	if secret == nil {
		return Authority{}, conditions.Stalled(v1alpha1.ReasonSecretNotFound,
			"spec.ca.secretRefs: Secret %q is not there in namespace %q; create it, or a PQCCertificate with isCA that keeps it", name, namespace)
	}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if len(secret.Data[key]) == 0 {
			return Authority{}, conditions.Stalled(v1alpha1.ReasonSecretInvalid,
				"Secret %q in namespace %q: key %s is missing; a CA's Secret is of type kubernetes.io/tls", name, namespace, key)
		}
	}
	if in != nil {
		if is := whereIs(secret.Data[corev1.TLSPrivateKeyKey]); is != inPool(in.Name) {
			return Authority{}, conditions.Stalled(v1alpha1.ReasonSecretInvalid,
				"Secret %q in namespace %q: its key is %s, and spec.ca.hsmRef wants one %s; name the Secret of a PQCCertificate with isCA and keyStorage HSM of that pool, or take hsmRef away", name, namespace, is, inPool(in.Name))
		}
	}
	authority, pool, err := read(secret.Data, find, now)
	if p, told := conditions.AsProblem(err); told {
		return Authority{}, conditions.Waiting(p.After, p.Reason, "Secret %q in namespace %q: %s", name, namespace, p.Message)
	} else if err == nil {
		return Authority{name, pool, authority}, nil
	}
	reason := v1alpha1.ReasonSecretInvalid
	var early *pki.NotYetValidError
	switch {
	case errors.As(err, &early):
		return Authority{}, conditions.Waiting(early.Wait(now), v1alpha1.ReasonCertificateNotYetValid, "Secret %q in namespace %q: %v", name, namespace, err)
	case errors.Is(err, errReading), errors.Is(err, openssl.ErrUnavailable):
		return Authority{}, err
	case errors.Is(err, keypair.ErrKeyMismatch):
		reason = v1alpha1.ReasonKeyMismatch
	case errors.Is(err, pki.ErrNotAnAuthority):
		reason = v1alpha1.ReasonNotAnAuthority
	case errors.Is(err, pki.ErrAuthorityExpired):
		reason = v1alpha1.ReasonCertificateExpired
	}
	return Authority{}, conditions.Stalled(reason, "Secret %q in namespace %q: %v", name, namespace, err)
}

// whereIs says where a key is that a Secret has, or the name of.
func whereIs(stored []byte) string {
	r, err := keypair.ParseReference(stored)
	if err != nil {
		return "in no HSMPool"
	}
	return inPool(r.Pool)
}

func inPool(name string) string { return fmt.Sprintf("in HSMPool %q", name) }

// errReading is in errors of reading, which are not the issuer's fault.
var errReading = errors.New("the key in an HSM")

// read an authority, and which HSMPool its key lies in, if any.
func read(data map[string][]byte, find finder, now time.Time) (authority *pki.Authority, pool string, err error) {
	cert, stored, root := data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey], data[corev1.ServiceAccountRootCAKey]
	if !keypair.IsReference(stored) {
		authority, err = pki.ParseAuthority(cert, stored, root, now)
		return authority, "", err
	}
	authority, err = pki.NewAuthority(cert, func() (crypto.Signer, error) {
		r, err := keypair.ParseReference(stored)
		if err != nil {
			return nil, err
		}
		pool = r.Pool
		key, err := find(r)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errReading, err)
		}
		return key, nil
	}, root, now)
	return authority, pool, err
}
