/* Opens a world of one rank and sums over it. */
#include <aliquot/aliquot.h>
#include <aliquot/aliquot_api.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  alq_error err;
  alq_open_desc desc;
  alq_context* ctx = NULL;
  alq_group* world = NULL;
  double x[3] = {1, 2, 3};
  memset(&err, 0, sizeof(err));
  memset(&desc, 0, sizeof(desc));
  err.struct_size = sizeof(err);
  desc.struct_size = sizeof(desc);
  desc.bootstrap = ALQ_BOOTSTRAP_SINGLE;
  if (alq_open(ALQ_ABI_VERSION, &desc, &ctx, &err) != ALQ_OK ||
      alq_group_world(ctx, &world, &err) != ALQ_OK ||
      alq_group_all_reduce(world, x, x, 3, ALQ_F64, ALQ_SUM, NULL, NULL,
                           &err) != ALQ_OK ||
      alq_close(ctx, 0, &err) != ALQ_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  alq_group_release(world);
  alq_release(ctx);
  if (x[0] != 1 || x[1] != 2 || x[2] != 3) return 1;
  const alq_api* api = alq_get_api(ALQ_ABI_MAJOR, 0);
  printf("version %d\n", api == NULL ? -1 : (int)api->alq_version());
  return 0;
}
