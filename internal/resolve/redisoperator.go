package resolve

import (
	"fmt"
	"net"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
)

// clusterReady is the state of a RedisCluster that serves.
const clusterReady = "Ready"

// RedisOperatorLocation is where the status of a RedisReplication or
// RedisCluster says that the servers are. While it does not, the text says what
// it does say.
func RedisOperatorLocation(o *unstructured.Unstructured) (*redisoperator.Location, string) {
	at := &redisoperator.Location{Mode: ticketstore.Members}
	host, _, _ := unstructured.NestedString(o.Object, "status", "connectionInfo", "host")
	port, _, _ := unstructured.NestedInt64(o.Object, "status", "connectionInfo", "port")
	at.Master, _, _ = unstructured.NestedString(o.Object, "status", "connectionInfo", "masterName")
	state, _, _ := unstructured.NestedString(o.Object, "status", "state")
	switch cluster := o.GetKind() == string(v1alpha1.RedisOperatorCluster); {
	case cluster && host == "" && state == clusterReady:
		// v0.26 has no connectionInfo there, and a Service for the leaders.
		at.Mode, host, port = ticketstore.Cluster, fmt.Sprintf("%s-leader.%s.svc", o.GetName(), o.GetNamespace()), 6379
	case cluster:
		at.Mode = ticketstore.Cluster
	case at.Master != "":
		at.Mode = ticketstore.Sentinel
	}
	if cluster := at.Mode == ticketstore.Cluster; host == "" {
		said := "has no status.connectionInfo"
		if reason, _, _ := unstructured.NestedString(o.Object, "status", "reason"); cluster && state != "" {
			said = fmt.Sprintf("has status.state %q", state)
			if reason != "" {
				said += " (" + reason + ")"
			}
		}
		return nil, fmt.Sprintf("%s %q %s yet; the Redis Operator's log, and `kubectl describe pods -l app.kubernetes.io/name=qtls-ticket-store`, say why",
			o.GetKind(), o.GetName(), said)
	}
	at.Address = net.JoinHostPort(host, strconv.FormatInt(port, 10))
	connection := ticketstore.Connection{Mode: at.Mode, Addresses: []string{at.Address}, Master: at.Master, Prefix: "x"}
	if err := connection.Validate(); err != nil {
		return nil, fmt.Sprintf("status.connectionInfo of %s %q: %v; the Redis Operator has to write another", o.GetKind(), o.GetName(), err)
	}
	return at, ""
}
