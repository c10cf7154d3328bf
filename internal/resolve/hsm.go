package resolve

import (
	"fmt"
	"slices"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/model"
)

// hsmPool resolves spec.hsmRef.
func (r *resolver) hsmPool() {
	ref := r.gateway.Spec.HSMRef
	if ref == nil {
		return
	}
	problem := func(reason, format string, args ...any) {
		r.hsmReason = reason
		r.problem(Problem{Condition: v1alpha1.ConditionResolvedRefs, Reason: reason, Holds: true,
			Message: "spec.hsmRef: " + fmt.Sprintf(format, args...)})
	}
	pool := r.objects.HSMPools[ref.Name]
	if pool == nil {
		problem(v1alpha1.ReasonHSMPoolNotFound, "there is no HSMPool %q in namespace %q; create it or name another", ref.Name, r.gateway.Namespace)
		return
	}
	members, err := hsmpool.GatewayMembers(pool)
	if err != nil {
		reason := v1alpha1.ReasonInvalid
		if p, ok := conditions.AsProblem(err); ok {
			reason = p.Reason
		}
		problem(reason, "%v", err)
		return
	}
	r.hsm = &model.HSM{Pool: ref.Name, Timeout: members.Timeout, Spread: members.Spread}
	for _, m := range members.Members {
		r.hsm.Members = append(r.hsm.Members, model.HSMMember{Name: m.Name, InPod: m.InPod, Address: m.Address, ServerName: m.ServerName, Secret: m.Secret, Sessions: m.Sessions})
	}
}

// unusableHSM is why the private key of a certificate cannot be used, if it lies
// in a pool that is not the gateway's.
func (r *resolver) unusableHSM(c model.Certificate) *Problem {
	ref := r.gateway.Spec.HSMRef
	switch {
	case c.HSMPool == "":
		return nil
	case ref == nil:
		return &Problem{Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonInvalid, Holds: true,
			Message: fmt.Sprintf("its private key lies in HSMPool %q, and spec.hsmRef is not set; set spec.hsmRef.name to %q", c.HSMPool, c.HSMPool)}
	case ref.Name != c.HSMPool:
		return &Problem{Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonInvalid, Holds: true,
			Message: fmt.Sprintf("its private key lies in HSMPool %q, and spec.hsmRef names %q; a gateway uses the keys of one pool: set spec.hsmRef.name to %q, or the keyStorage of the certificate to %q", c.HSMPool, ref.Name, c.HSMPool, ref.Name)}
	case r.hsm == nil:
		return &Problem{Condition: v1alpha1.ConditionResolvedRefs, Reason: r.hsmReason, Holds: true,
			Message: fmt.Sprintf("its private key lies in HSMPool %q, which cannot be used: see the gateway's own condition ResolvedRefs", c.HSMPool)}
	}
	return nil
}

// usesHSM says whether any private key lies in an HSM.
func usesHSM(m model.Gateway) bool {
	return slices.ContainsFunc(m.Ports, func(p model.Port) bool {
		return slices.ContainsFunc(p.Listeners, func(l model.Listener) bool {
			return slices.ContainsFunc(l.Certificates, func(c model.Certificate) bool { return c.HSMPool != "" })
		})
	})
}
