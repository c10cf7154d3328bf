//go:build integration

package gateway

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// A Redis of the user's own may well have a Secret of that name.
func TestASecretOfSomebodyElsesIsNoStore(t *testing.T) {
	c, namespace := prepared(t)
	create(t, c, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-redis"}, Data: map[string][]byte{"redis-password": []byte("theirs")}})
	g := webGateway(namespace)
	create(t, c, g)
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonNotApplied, `Secret "web-redis" exists in namespace "`+namespace+`" and is not this gateway's`)
	// What the agents read stays as it is: nothing is made again and again.
	versions := map[string]bool{}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s := &corev1.Secret{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: dataplane.TicketsSecretName("web")}, s); err != nil {
			t.Fatal(err)
		}
		versions[s.ResourceVersion] = true
	}
	if len(versions) > 2 {
		t.Errorf("the Secret of the agents was written %d times in 5 s", len(versions))
	}
}
