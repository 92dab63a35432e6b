// Trains a tier on a device, from the samples to the state that stays there.
import { ClientError } from "./problems.js";
import { checkInputs } from "./run.js";
import { Trainer } from "./trainer.js";
/**
 * Train a tier on labelled samples and return the new state. A `state` of an earlier round has the personal tensors; one of the same bundle is
 * trained further: with the same seed and samples, to the same bits as in one training. Training stops before a step that would exceed the time
 * limit; the finished steps count. With a `store`, a training that was interrupted continues after the last step that was stored.
 */
export async function train(bundle, label, data, how = {}, state = null, client = "", onStep, store = null) {
    checkInputs(bundle.manifest, data);
    const trainer = await Trainer.create(bundle, label, state);
    try {
        const done = await trainer.run(data, how, undefined, onStep, store);
        if (done.diverged)
            throw new ClientError(`${done.problem}: training diverged; a smaller --lr may help`);
        return trainer.state(client, done);
    }
    finally {
        await trainer.release();
    }
}
