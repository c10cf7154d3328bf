package resolve

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
)

func TestWhereTheRedisOperatorSaysThatTheServersAre(t *testing.T) {
	info := func(host string, port any, master string) map[string]any {
		c := map[string]any{"host": host, "port": port}
		if master != "" {
			c["masterName"] = master
		}
		return map[string]any{"connectionInfo": c}
	}
	for name, tc := range map[string]struct {
		kind   string
		status map[string]any
		want   *redisoperator.Location
		says   string
	}{
		"a primary": {"RedisReplication", info("web-ticket-store-master.shop.svc.cluster.local", int64(6379), ""),
			&redisoperator.Location{Mode: ticketstore.Members, Address: "web-ticket-store-master.shop.svc.cluster.local:6379"}, ""},
		"Sentinels": {"RedisReplication", info("web-ticket-store-s-hl.shop.svc.cluster.local", int64(26379), "mymaster"),
			&redisoperator.Location{Mode: ticketstore.Sentinel, Address: "web-ticket-store-s-hl.shop.svc.cluster.local:26379", Master: "mymaster"}, ""},
		"a cluster": {"RedisCluster", info("leaders.shop.svc", int64(7000), ""),
			&redisoperator.Location{Mode: ticketstore.Cluster, Address: "leaders.shop.svc:7000"}, ""},
		"a cluster that says no more than that it is ready": {"RedisCluster", map[string]any{"state": "Ready"},
			&redisoperator.Location{Mode: ticketstore.Cluster, Address: "web-ticket-store-leader.shop.svc:6379"}, ""},
		"a cluster to be": {"RedisCluster", map[string]any{"state": "Bootstrap", "reason": "RedisCluster is bootstrapping"}, nil,
			`RedisCluster "web-ticket-store" has status.state "Bootstrap" (RedisCluster is bootstrapping) yet`},
		"nothing":                 {"RedisReplication", nil, nil, `RedisReplication "web-ticket-store" has no status.connectionInfo yet`},
		"nothing of a cluster":    {"RedisCluster", nil, nil, `RedisCluster "web-ticket-store" has no status.connectionInfo yet`},
		"a replication's state":   {"RedisReplication", map[string]any{"state": "Ready"}, nil, "has no status.connectionInfo yet"},
		"no port":                 {"RedisReplication", info("a", nil, ""), nil, `status.connectionInfo of RedisReplication "web-ticket-store": addresses[0] is "a:0"`},
		"a port that is none":     {"RedisReplication", info("a", int64(70000), ""), nil, "not a number from 1 to 65535"},
		"a host that is a URL":    {"RedisReplication", info("redis://a", int64(1), ""), nil, "want host:port alone"},
		"a host that is a number": {"RedisReplication", map[string]any{"connectionInfo": map[string]any{"host": int64(1)}}, nil, "has no status.connectionInfo yet"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{Object: map[string]any{"kind": tc.kind, "metadata": map[string]any{"namespace": "shop", "name": "web-ticket-store"}}}
			if tc.status != nil {
				o.Object["status"] = tc.status
			}
			got, says := RedisOperatorLocation(o)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("location (-want +got):\n%s", diff)
			}
			if (says == "") != (tc.says == "") || !strings.Contains(says, tc.says) {
				t.Errorf("it says %q, want %q", says, tc.says)
			}
		})
	}
}
