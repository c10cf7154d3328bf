//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
	"qtls.dev/qtls/internal/ticketstore/redisoperator/operatortest"
)

// A store that the Redis Operator runs: here something that stands in for it, which makes of a RedisReplication what it
// would. Neither its image nor those of its servers can be had where the tests run.
func redisOperator(t *testing.T) {
	n := newNamespace(t)
	r := n.withWeb()
	g := n.resumingGateway("web", 2, v1alpha1.SessionResumption{Store: v1alpha1.TicketStore{Type: v1alpha1.TicketStoreRedisOperator,
		RedisOperator: &v1alpha1.RedisOperatorStore{ClusterSize: ptr.To[int32](2), Image: image("redis")}}})
	message := waitCondition(t, g, v1alpha1.ConditionSessionResumption, "False", v1alpha1.ReasonStoreKindNotInstalled, forReady)
	tells(t, message, "RedisReplication", redisoperator.GroupVersion.String(), "install the Redis Operator", "Embedded")
	waitReady(t, g, forReady) // and it serves

	start := time.Now()
	store := n.standInForRedisOperator("web-ticket-store")
	waitShared(t, g, forReady)
	result(t, "a store of the Redis Operator's: clients resume %.0f s after its kinds were installed", time.Since(start).Seconds())
	addresses, pods := n.direct(g)
	saved := n.saveTicket(r, addresses[0])
	for _, a := range addresses {
		if !n.resumes(r, a, saved) {
			t.Errorf("the session of pod %s is not resumed by pod %s", pods[addresses[0]], pods[a])
		}
	}
	result(t, "the ticket of pod %s is resumed by each of %d pods", pods[addresses[0]], len(addresses))

	load := n.startReturning(r, 3, 60, 150, addresses...)
	time.Sleep(3 * time.Second)
	remove(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: store + "-0"}}, client.GracePeriodSeconds(0))
	time.Sleep(12 * time.Second)
	s := n.stop(load)
	result(t, "while the primary is killed: %s", s.resumption())
	if !s.enough(3, long) || s.Failed > 0 || s.Returning < 100 {
		t.Errorf("while the primary is killed: %s\n%s", s.resumption(), s)
	}
	waitShared(t, g, forReady)

	// Another store takes its place, and nothing is left of the first.
	update(t, g, func(g *v1alpha1.QTLSGateway) { g.Spec.SessionResumption.Store = v1alpha1.TicketStore{} })
	waitShared(t, g, forReady)
	eventually(t, forReady, "the Redis Operator's objects are gone", func(ctx context.Context) (bool, string) {
		var left []string
		for _, o := range []client.Object{replication(n.name, store), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: store}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: store}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: store + "-server"}},
			&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: store}}} {
			if err := cluster.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				left = append(left, fmt.Sprintf("%T %s (%v)", o, o.GetName(), err))
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
}

func replication(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(redisoperator.GroupVersion.WithKind("RedisReplication"))
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// standInForRedisOperator installs the Redis Operator's kinds, and does until the test ends what it does about one
// RedisReplication, whose name it returns. The kinds go with the test.
func (n namespace) standInForRedisOperator(name string) string {
	n.Helper()
	o := replication(n.name, name)
	if err := cluster.Get(n.Context(), client.ObjectKeyFromObject(o), o); !meta.IsNoMatchError(err) {
		n.Skipf("the cluster has a Redis Operator, or had one (%v)", err)
	}
	for _, k := range operatortest.Kinds() {
		if err := cluster.Create(n.Context(), k); err != nil {
			n.Fatalf("%s: %v", k.GetName(), err)
		}
		n.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := client.IgnoreNotFound(cluster.Delete(ctx, k)); err != nil {
				n.Error(err)
			}
		})
	}
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for said := ""; ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
			err := n.reconcileReplication(ctx, name)
			if now := fmt.Sprint(err); err != nil && ctx.Err() == nil && now != said {
				said = now
				n.Logf("instead of the Redis Operator: %v", err)
			}
		}
	}()
	n.Cleanup(func() { cancel(); <-done })
	return name
}

// reconcileReplication does what the Redis Operator does: Services, a StatefulSet whose pods have the object's labels and
// annotations and are configured from its fields, and the status. It says where the primary is when the pods are ready.
// That the first pod is the primary, and its configuration's way into the pods, are simpler.
func (n namespace) reconcileReplication(ctx context.Context, name string) error {
	o := replication(n.name, name)
	if err := cluster.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return nil
		}
		return err
	}
	var spec struct {
		ClusterSize      int32 `json:"clusterSize"`
		KubernetesConfig struct {
			Image           string                      `json:"image"`
			ImagePullPolicy corev1.PullPolicy           `json:"imagePullPolicy"`
			Resources       corev1.ResourceRequirements `json:"resources"`
			RedisSecret     struct {
				Name string `json:"name"`
				Key  string `json:"key"`
			} `json:"redisSecret"`
		} `json:"kubernetesConfig"`
		RedisConfig struct {
			AdditionalRedisConfig string `json:"additionalRedisConfig"`
		} `json:"redisConfig"`
		TLS struct {
			Secret corev1.SecretVolumeSource `json:"secret"`
		} `json:"TLS"`
		ACL struct {
			Secret corev1.SecretVolumeSource `json:"secret"`
		} `json:"acl"`
		PodSecurityContext        *corev1.PodSecurityContext        `json:"podSecurityContext"`
		SecurityContext           *corev1.SecurityContext           `json:"securityContext"`
		TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object["spec"].(map[string]any), &spec); err != nil {
		return err
	}
	secret := &corev1.Secret{}
	if err := cluster.Get(ctx, client.ObjectKey{Namespace: n.name, Name: spec.KubernetesConfig.RedisSecret.Name}, secret); err != nil {
		return err
	}
	password := string(secret.Data[spec.KubernetesConfig.RedisSecret.Key])

	at := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: n.name, Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(o, o.GroupVersionKind())}}
	}
	labels := map[string]string{"app": name, "redis_setup_type": "replication", "role": "replication"}
	podLabels := o.GetLabels()
	maps.Copy(podLabels, labels)
	port := []corev1.ServicePort{{Name: "redis-client", Port: 6379}}
	headless := &corev1.Service{ObjectMeta: at(name + "-headless"), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: labels, Ports: port, PublishNotReadyAddresses: true}}
	primary := &corev1.Service{ObjectMeta: at(name + "-master"), Spec: corev1.ServiceSpec{Selector: map[string]string{appsv1.StatefulSetPodNameLabel: name + "-0"}, Ports: port}}
	generated := &corev1.Secret{ObjectMeta: at(name + "-generated"), StringData: map[string]string{"redis.conf": operatortest.Mounted.Config(password, 6379)}}
	probe := &corev1.Probe{PeriodSeconds: 2, TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c",
		`valkey-cli -h $(hostname) -p 6379 -a "$REDIS_PASSWORD" --tls --cert /tls/tls.crt --key /tls/tls.key --cacert /tls/ca.crt -e ping`}}}}
	set := &appsv1.StatefulSet{ObjectMeta: at(name), Spec: appsv1.StatefulSetSpec{
		Replicas: &spec.ClusterSize, ServiceName: headless.Name, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: podLabels, Annotations: o.GetAnnotations()},
			Spec: corev1.PodSpec{
				SecurityContext: spec.PodSecurityContext, TopologySpreadConstraints: spec.TopologySpreadConstraints,
				Containers: []corev1.Container{{
					Name: name, Image: spec.KubernetesConfig.Image, ImagePullPolicy: spec.KubernetesConfig.ImagePullPolicy, Resources: spec.KubernetesConfig.Resources,
					Command: []string{"sh", "-c", fmt.Sprintf(`case $(hostname) in %[1]s-0) set --;; *) set -- --replicaof %[1]s-0.%[1]s-headless.%[2]s.svc 6379;; esac; exec valkey-server /etc/redis/generated/redis.conf "$@"`, name, n.name)},
					Env: []corev1.EnvVar{{Name: "REDIS_PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: spec.KubernetesConfig.RedisSecret.Name}, Key: spec.KubernetesConfig.RedisSecret.Key}}}},
					ReadinessProbe: probe, SecurityContext: spec.SecurityContext,
					VolumeMounts: []corev1.VolumeMount{
						{Name: "tls-certs", MountPath: operatortest.Mounted.TLS, ReadOnly: true},
						{Name: "acl-secret", MountPath: operatortest.Mounted.Users, SubPath: redisoperator.KeyUsers},
						{Name: "external-config", MountPath: "/etc/redis/external.conf.d"},
						{Name: "generated", MountPath: "/etc/redis/generated"},
						{Name: "data", MountPath: operatortest.Mounted.Data},
					},
				}},
				Volumes: []corev1.Volume{
					{Name: "tls-certs", VolumeSource: corev1.VolumeSource{Secret: &spec.TLS.Secret}},
					{Name: "acl-secret", VolumeSource: corev1.VolumeSource{Secret: &spec.ACL.Secret}},
					{Name: "external-config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: spec.RedisConfig.AdditionalRedisConfig}}}},
					{Name: "generated", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: generated.Name}}},
					{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				},
			},
		},
	}}
	for _, made := range []client.Object{headless, primary, generated, set} {
		if err := cluster.Create(ctx, made); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	if err := cluster.Get(ctx, client.ObjectKeyFromObject(set), set); err != nil || set.Status.ReadyReplicas < spec.ClusterSize {
		return err
	}
	status := map[string]any{"masterNode": name + "-0", "connectionInfo": map[string]any{
		"host": fmt.Sprintf("%s.%s.svc.cluster.local", primary.Name, n.name), "port": int64(6379)}}
	if had, _, _ := unstructured.NestedMap(o.Object, "status"); had["masterNode"] == status["masterNode"] {
		return nil
	}
	o.Object["status"] = status
	return cluster.Status().Update(ctx, o)
}
