//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// inventory lists every object of a namespace, of every kind that the API server knows, but for events.
func inventory(ctx context.Context, t *testing.T, namespace string) []string {
	t.Helper()
	lists, err := discovery.ServerPreferredNamespacedResources(cluster.clientset.Discovery())
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(cluster.config)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range list.APIResources {
			if !slices.Contains(kind.Verbs, "list") || kind.Name == "events" || gv.Group == "metrics.k8s.io" {
				continue
			}
			items, err := objects.Resource(gv.WithResource(kind.Name)).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // the kind itself has just gone
			}
			if err != nil {
				t.Fatalf("list %s: %v", kind.Name, err)
			}
			for _, o := range items.Items {
				found = append(found, kind.Name+"/"+o.GetName())
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestDeletionLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.withIssuer()
	echo := n.startEcho("echo", 1, "")
	n.create(certificate("web", dual, "web.example"))
	n.waitPods(echo, 1)
	c := certificate("web", nil)
	c.Namespace = n.name
	waitReady(t, c, forReady)
	eventually(t, forChange, "the namespace is at rest", func(ctx context.Context) (bool, string) {
		all := inventory(ctx, t, n.name)
		sliced := slices.ContainsFunc(all, func(o string) bool { return strings.HasPrefix(o, "endpointslices/echo-") })
		return sliced && slices.Contains(all, "configmaps/kube-root-ca.crt"), strings.Join(all, " ")
	})
	before := inventory(t.Context(), t, n.name)

	g := gateway("gone", https("web", 443, "web.example"))
	n.create(g)
	waitReady(t, g, forReady)
	during := inventory(t.Context(), t, n.name)
	var made []string
	for _, o := range during {
		if !slices.Contains(before, o) {
			made = append(made, o)
		}
	}
	result(t, "a gateway makes %d objects: %s", len(made), strings.Join(made, " "))
	start := time.Now()
	remove(t, g)
	eventually(t, forReady, "nothing of the gateway is left", func(ctx context.Context) (bool, string) {
		var left []string
		for _, o := range inventory(ctx, t, n.name) {
			if !slices.Contains(before, o) {
				left = append(left, o)
			}
		}
		return len(left) == 0, strings.Join(left, " ")
	})
	result(t, "deleted: nothing is left after %.1f s", time.Since(start).Seconds())

	// The rest goes with its namespace, at once with a gateway that is in use.
	n.create(gateway("again", https("web", 443, "web.example")))
	again := gateway("again")
	again.Namespace = n.name
	waitReady(t, again, forReady)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	start = time.Now()
	remove(t, ns)
	eventually(t, forReady, "the namespace is gone", func(ctx context.Context) (bool, string) {
		err := cluster.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		return apierrors.IsNotFound(err), fmt.Sprintf("%v %+v", err, ns.Status.Conditions)
	})
	result(t, "namespace with a gateway in it: gone after %.1f s", time.Since(start).Seconds())
}

// A PQCCertificate takes its Secrets and requests with it.
func TestDeletionOfACertificate(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.withIssuer()
	before := inventory(t.Context(), t, n.name)
	n.create(certificate("short", dual, "web.example"))
	c := certificate("short", nil)
	c.Namespace = n.name
	waitReady(t, c, forReady)
	remove(t, c)
	eventually(t, forReady, "nothing of the certificate is left", func(ctx context.Context) (bool, string) {
		var left []string
		for _, o := range inventory(ctx, t, n.name) {
			if !slices.Contains(before, o) && o != "configmaps/kube-root-ca.crt" && o != "serviceaccounts/default" {
				left = append(left, o)
			}
		}
		return len(left) == 0, strings.Join(left, " ")
	})
}
