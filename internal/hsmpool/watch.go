package hsmpool

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"qtls.dev/qtls/api/v1alpha1"
)

// Notable changes of HSMPools are those that whoever uses their keys has to know
// of. Their status changes with every signature.
func Notable() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || readiness(e.ObjectOld) != readiness(e.ObjectNew)
	}}
}

func readiness(pool client.Object) string {
	c := meta.FindStatusCondition(pool.(*v1alpha1.HSMPool).Status.Conditions, v1alpha1.ConditionReady)
	if c == nil {
		return ""
	}
	return string(c.Status) + c.Reason
}
