package certificate

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/resources"
)

// A gateway may serve a certificate long after its Secret has another: while a
// wrong reference holds its configuration, or HAProxy refuses the new content.
// What destroys a key cannot be undone, so the pods are asked.

// Agents tell what pods of gateways run.
type Agents interface {
	// Status is what a pod's agent said last, or why that is not known.
	Status(gateway types.NamespacedName, pod types.UID) (*dataplane.Status, error)
}

// gatewayPod is a pod of a gateway, and what its agent says; nil where that is
// not known.
type gatewayPod struct {
	corev1.Pod
	status *dataplane.Status
}

// gatewayPods of a namespace, which may use its HSMPools.
func (r *Reconciler) gatewayPods(ctx context.Context, namespace string) ([]gatewayPod, error) {
	var list corev1.PodList
	if err := r.APIReader.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels(resources.SelectorOfAll())); err != nil {
		return nil, fmt.Errorf("pods of gateways: %w", err)
	}
	var pods []gatewayPod
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		status, err := r.Agents.Status(types.NamespacedName{Namespace: namespace, Name: p.Labels[v1alpha1.LabelGateway]}, p.UID)
		if err != nil {
			status = nil
		}
		pods = append(pods, gatewayPod{p, status})
	}
	return pods, nil
}

// around is how long before and after a key was replaced a pod may have come that
// read its Secret in between: the API server's clock says when a pod came, and
// ours when the key was about to be replaced.
const around = 5 * time.Minute

// neverRan says that no container of a pod has been started, as where no node has
// room or its image is not there.
func neverRan(p *corev1.Pod) bool {
	if p.Spec.NodeName == "" {
		return true
	}
	started := func(s corev1.ContainerStatus) bool {
		return s.ContainerID != "" || s.RestartCount > 0 || s.State.Waiting == nil || s.LastTerminationState.Terminated != nil
	}
	all := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	return len(all) > 0 && !slices.ContainsFunc(all, started) // without any, its node has said nothing yet
}

// whoKeeps a former key: which gateway's pod signs with it, or may; empty where
// none does. Of a pod that serves nothing, or that nothing is known of, as its
// agent is of a release that does not tell keys, what counts is its age, where it
// ever ran: one that came after the key was replaced never had it. It is pure.
func whoKeeps(key formerKey, pods []gatewayPod) string {
	for _, p := range pods {
		who := fmt.Sprintf("pod %s of QTLSGateway %q", p.Name, p.Labels[v1alpha1.LabelGateway])
		switch {
		case p.status != nil && slices.ContainsFunc(p.status.HSMKeys, func(uri string) bool {
			// Several pools may lead to the same token.
			reference, err := keypair.ParseURI(uri)
			return err == nil && reference.Label == key.Label
		}):
			return who + " serves a certificate with it"
		case (p.status == nil || p.status.HSMKeys == nil || p.status.Running.Revision == "") && !p.CreationTimestamp.After(key.replaced.Add(around)) && !neverRan(&p.Pod):
			return "what " + who + " serves is not known"
		}
	}
	return ""
}
