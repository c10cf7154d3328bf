package resolve

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/ticketstore"
)

// Store is how an External store is reached: by the operator, who writes, and by
// the gateway's agents, who read.
type Store struct {
	Operator, Agent ticketstore.Connection
}

// ExternalStore resolves spec.sessionResumption.store.external. The Problem says
// what is wrong with it, or with an object that it names; then there is no
// store, and handshakes do not depend on it.
func ExternalStore(g *v1alpha1.QTLSGateway, o Objects) (*Store, *Problem) {
	const (
		field  = "spec.sessionResumption.store.external"
		marked = v1alpha1.LabelTicketStore + "=" + v1alpha1.LabelTicketStoreValue
	)
	problem := func(format string, args ...any) (*Store, *Problem) {
		return nil, &Problem{Condition: v1alpha1.ConditionSessionResumption, Reason: v1alpha1.ReasonStoreInvalid,
			Message: field + fmt.Sprintf(format, args...)}
	}
	e := g.Spec.SessionResumption.Store.External
	if e == nil {
		return problem(": needed with type External")
	}
	base := ticketstore.Connection{Mode: ticketstore.Members, Master: e.SentinelMaster, ServerName: string(e.ServerName), Prefix: e.KeyPrefix}
	switch {
	case e.SentinelMaster != "":
		base.Mode = ticketstore.Sentinel
	case e.Cluster:
		base.Mode = ticketstore.Cluster
	}
	for _, a := range e.Addresses {
		base.Addresses = append(base.Addresses, string(a))
	}
	var bundle strings.Builder
	for i, ref := range e.CARefs {
		text, ok := o.authority(ref)
		if !ok {
			return problem(".caRefs[%d]: there is no %s %q with key %q in namespace %q; create it or name another", i, ref.Kind, ref.Name, ref.Key, g.Namespace)
		}
		certificates, err := keypair.ParseCertificates(text)
		if err != nil {
			return problem(".caRefs[%d]: %s %q, key %q: %v", i, ref.Kind, ref.Name, ref.Key, err)
		}
		bundle.Write((&keypair.KeyPair{Chain: certificates}).ChainPEM())
	}
	base.CA = []byte(bundle.String())
	s := &Store{}
	for _, who := range []struct {
		field string
		ref   v1alpha1.SecretReference
		into  *ticketstore.Connection
	}{{"credentialsRef", e.CredentialsRef, &s.Operator}, {"agentCredentialsRef", e.AgentCredentialsRef, &s.Agent}} {
		secret := o.Secrets[who.ref.Name]
		if secret == nil {
			return problem(".%s: there is no Secret %q in namespace %q; create it (type %s, label %s) or name another", who.field, who.ref.Name, g.Namespace, corev1.SecretTypeBasicAuth, marked)
		}
		// Its password goes to an address that the gateway's author chose, who
		// may not be one who may read Secrets.
		if secret.Type != corev1.SecretTypeBasicAuth { // which cannot be changed
			return problem(".%s: Secret %q is not of type %s, without which no password is sent to a store; if its password is for this one, make it anew with that type and label %s; or name another", who.field, who.ref.Name, corev1.SecretTypeBasicAuth, marked)
		}
		if secret.Labels[v1alpha1.LabelTicketStore] != v1alpha1.LabelTicketStoreValue {
			return problem(".%s: Secret %q does not have label %s, without which no password is sent to a store; label it if its password is for this one, or name another", who.field, who.ref.Name, marked)
		}
		user, password := string(secret.Data[corev1.BasicAuthUsernameKey]), string(secret.Data[corev1.BasicAuthPasswordKey])
		if password == "" {
			return problem(".%s: Secret %q has no key %q; put the password there, and the user's name in %q", who.field, who.ref.Name, corev1.BasicAuthPasswordKey, corev1.BasicAuthUsernameKey)
		}
		*who.into = base
		who.into.Username, who.into.Password = user, password
	}
	if err := s.Agent.Validate(); err != nil {
		return problem(": %v", err)
	}
	return s, nil
}

// authority is what a CA reference names.
func (o Objects) authority(ref v1alpha1.CAReference) ([]byte, bool) {
	if ref.Kind == v1alpha1.CAKindConfigMap {
		if cm := o.ConfigMaps[ref.Name]; cm != nil {
			text, ok := cm.Data[ref.Key]
			return []byte(text), ok
		}
		return nil, false
	}
	if s := o.Secrets[ref.Name]; s != nil {
		text, ok := s.Data[ref.Key]
		return text, ok
	}
	return nil, false
}
