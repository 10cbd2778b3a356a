package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

const pythonGroup = `
import sys
from kafka import KafkaConsumer
servers, topic, total = sys.argv[1].split(','), sys.argv[2], int(sys.argv[3])
for version in (None, (0, 9), (0, 10, 1), (0, 11), (1, 1), (2, 5)):
    more = {} if version is None else {'api_version': version}
    c = KafkaConsumer(topic, bootstrap_servers=servers, group_id='python %s' % (version,), auto_offset_reset='earliest',
                      consumer_timeout_ms=30000, **more)
    n = 0
    for _ in c:
        n += 1
        if n == total: break
    assert n == total, (version, n)
    c.commit()
    assert sum(c.committed(p) or 0 for p in c.assignment()) == total, version
    c.close()
print('python is content')
`

const nodeGroup = `
const {Kafka, logLevel} = require('kafkajs'), assert = require('assert');
(async () => {
  const [brokers, topic, total] = [process.argv[2].split(','), process.argv[3], Number(process.argv[4])];
  const kafka = new Kafka({brokers, logLevel: logLevel.ERROR});
  const seen = {}, members = [];
  let n = 0, all; const done = new Promise(ok => all = ok);
  for (const name of ['a', 'b']) {
    const c = kafka.consumer({groupId: 'node'});
    await c.connect(); await c.subscribe({topics: [topic], fromBeginning: true});
    await c.run({autoCommitInterval: 100, eachMessage: async ({partition, message}) => {
      const at = partition + '@' + message.offset;
      if (!seen[at]) { seen[at] = true; if (++n == total) all(); }
    }});
    members.push(c);
  }
  await done;
  const admin = kafka.admin(); await admin.connect();
  for (;;) {
    const g = (await admin.describeGroups(['node'])).groups[0];
    if (g.state == 'Stable' && g.members.length == 2) break;
    await new Promise(ok => setTimeout(ok, 100));
  }
  for (const c of members) await c.disconnect();
  const offsets = (await admin.fetchOffsets({groupId: 'node', topics: [topic]}))[0].partitions;
  assert.equal(offsets.reduce((s, p) => s + Math.max(0, Number(p.offset)), 0), total);
  assert.ok((await admin.listGroups()).groups.some(g => g.groupId == 'node'));
  assert.equal((await admin.deleteGroups(['node']))[0].errorCode, 0);
  await admin.disconnect();
  console.log('node is content');
})().catch(e => { console.error(e); process.exit(1); });
`

// TestScriptedGroups: kafka-python in the dialect of each age, and two members of kafkajs, read a topic in groups.
func TestScriptedGroups(t *testing.T) {
	python, node := testtool.Need(t, testtool.Python), testtool.Need(t, testtool.Node)
	to := newTarget(t)
	harness.CreateTopic(t, to.brokers, "scripts", 4, to.replicas, nil)
	const total = 300
	harness.Kcat(t, input(lines("scripts", total)), "-b", to.bootstrap, "-P", "-t", "scripts")
	file := filepath.Join(t.TempDir(), "group.js")
	if err := os.WriteFile(file, []byte(nodeGroup), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	args := []string{to.bootstrap, "scripts", fmt.Sprint(total)}
	js := exec.CommandContext(ctx, "node", append([]string{file}, args...)...)
	js.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(node, "node_modules"))
	for want, cmd := range map[string]*exec.Cmd{"node is content": js, "python is content": exec.CommandContext(ctx, python, append([]string{"-c", pythonGroup}, args...)...)} {
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
			continue
		}
		words(t, string(out), want)
	}
}
